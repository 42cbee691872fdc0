package edgegrad.@name@;

import java.lang.reflect.Array;
import java.util.Arrays;

/** Name, type and shape of an input, an output or a parameter. */
public final class Tensor {
  public final String name;
  public final Dtype dtype;
  public final long[] dims;
  public final long bytes;
  public final boolean trainable;

  Tensor(String name, long[] facts) {
    this.name = name;
    this.dtype = Dtype.of((int) facts[0]);
    this.bytes = facts[1];
    this.trainable = facts[2] != 0;
    this.dims = Arrays.copyOfRange(facts, 3, facts.length);
  }

  /** Return the number of elements. */
  public int elements() {
    long count = 1;
    for (long dim : dims) {
      count *= dim;
    }
    return Math.toIntExact(count);
  }

  private Class<?> type() {
    switch (dtype) {
      case F32:
        return float.class;
      case F64:
        return double.class;
      case I64:
      case U64:
        return long.class;
      case I32:
      case U32:
        return int.class;
      case I16:
      case U16:
        return short.class;
      case BOOL:
        return boolean.class;
      default:
        return byte.class;
    }
  }

  Object makeArray() {
    return Array.newInstance(type(), elements());
  }

  void check(String place, Object array) {
    boolean fits = array != null && array.getClass().getComponentType() == type();
    if (!fits || Array.getLength(array) != elements()) {
      String found = array == null ? "null" : array.getClass().getSimpleName();
      if (array != null && array.getClass().isArray()) {
        found += " of " + Array.getLength(array) + " elements";
      }
      String wanted = type() + "[] of " + elements() + " elements";
      throw Model.refuse(place + ": expected " + wanted + ", got " + found);
    }
  }
}
