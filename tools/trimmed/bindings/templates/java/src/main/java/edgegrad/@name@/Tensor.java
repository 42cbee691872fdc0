package edgegrad.@name@;

import java.lang.reflect.Array;
import java.util.Arrays;

/** Name, type and shape of an input, an output or a parameter. */
public final class Tensor {
  /** The name in the model. */
  public final String name;
  /** The type of the elements. */
  public final Dtype dtype;
  /** The shape. */
  public final long[] dims;
  /** The size of the values. */
  public final long bytes;
  /** Whether the tensor is a parameter that training changes. */
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

  /** Return a new array of the tensor's type and size, such as a {@code float[]}. */
  public Object makeArray() {
    return Array.newInstance(type(), elements());
  }

  @Override
  public String toString() {
    return name + ": " + dtype + Arrays.toString(dims);
  }

  void check(String place, Object array) {
    boolean fits = array != null && array.getClass().getComponentType() == type();
    if (!fits || Array.getLength(array) != elements()) {
      String found = array == null ? "null" : array.getClass().getSimpleName();
      if (array != null && array.getClass().isArray()) {
        found += " of " + Array.getLength(array) + " elements";
      }
      String wanted = type() + "[] of " + elements() + " elements, " + Arrays.toString(dims);
      throw Model.refuse(place + ": expected " + wanted + ", got " + found);
    }
  }
}
