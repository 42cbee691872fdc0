import edgegrad.mnist.Model;
import edgegrad.mnist.ModelException;
import edgegrad.mnist.Phase;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;

/** Every method with values that nobody should pass: Hostile CHECKPOINT. */
public final class Hostile {
  private static final Map<Class<?>, Object[]> VALUES = new HashMap<>();

  static {
    String longText = new String(new char[5000]).replace('\0', 'x');
    VALUES.put(int.class, new Object[] {0, -1, Integer.MAX_VALUE, Integer.MIN_VALUE, 1});
    VALUES.put(long.class, new Object[] {0L, -1L, Long.MAX_VALUE, Long.MIN_VALUE, 1L});
    VALUES.put(float.class, new Object[] {Float.NaN, -1f, Float.POSITIVE_INFINITY, 1e30f, 0f});
    VALUES.put(boolean.class, new Object[] {true, false, true, false, true});
    VALUES.put(String.class, new Object[] {null, "", "a\0b", longText, "missing/x"});
    VALUES.put(Phase.class, new Object[] {null, Phase.TRAIN, Phase.EVAL, Phase.INFER, null});
    VALUES.put(byte[].class, new Object[] {null, new byte[0], new byte[1], new byte[99999], null});
    VALUES.put(float[].class, new Object[] {null, new float[0], new float[1], new float[9999], null});
    VALUES.put(double[].class, new Object[] {null, new double[0], new double[1], new double[9], null});
    VALUES.put(Object.class, new Object[] {null, "text", new float[1], new long[0], 3});
    VALUES.put(
        Object[].class,
        new Object[] {
          null, new Object[0], new Object[] {null, null}, new Object[] {"x"}, new Object[] {1, 2, 3}
        });
  }

  private static void call(Model model, Method method, int turn) throws IllegalAccessException {
    Class<?>[] types = method.getParameterTypes();
    Object[] given = new Object[types.length];
    boolean hasNoPhase = false;
    for (int i = 0; i < given.length; i++) {
      given[i] = VALUES.get(types[i])[(turn + 2 * i) % 5];
      hasNoPhase |= types[i] == Phase.class && given[i] == null;
    }
    try {
      method.invoke(model, given);
    } catch (InvocationTargetException error) {
      Throwable cause = error.getCause();
      boolean isExpected = cause instanceof ModelException && !cause.getMessage().isEmpty();
      if (!isExpected && !(hasNoPhase && cause instanceof NullPointerException)) {
        System.out.println(method + " " + Arrays.toString(given) + ": " + cause);
      }
    }
  }

  private static void callAll(Model model) throws IllegalAccessException {
    Method[] methods = Model.class.getDeclaredMethods();
    Arrays.sort(methods, Comparator.comparing(Method::toString));
    for (Method method : methods) {
      int kind = method.getModifiers();
      boolean isCalled = Modifier.isPublic(kind) && !Modifier.isStatic(kind);
      for (int turn = 0; isCalled && !method.getName().equals("close") && turn < 5; turn++) {
        call(model, method, turn);
      }
    }
  }

  public static void main(String[] arguments) throws IllegalAccessException {
    try (Model model = Model.create(arguments[0]);
        Model closed = Model.create(arguments[0])) {
      closed.close();
      try {
        Model.createFrom(new byte[0]).close();
      } catch (ModelException error) {
        System.out.println(error.getMessage()); // not a model without values, as of null
      }
      callAll(model);
      callAll(closed);
      float[] x = new float[model.inputInfo(Phase.TRAIN, 0).elements()];
      long[] y = new long[model.inputInfo(Phase.TRAIN, 1).elements()];
      System.out.println("loss " + Float.isFinite(model.trainStep(x, y)[0].item()));
    }
  }
}
