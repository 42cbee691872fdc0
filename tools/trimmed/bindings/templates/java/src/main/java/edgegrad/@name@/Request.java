package edgegrad.@name@;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A request of a server, as a file of safetensors: read, and checked against its bytes. */
final class Request {
  private static final int MOST = 1 << 22; // bytes of a header
  private static final List<String> FIELDS =
      Arrays.asList("edgegrad.message", "kind", "model", "round");
  private static final Map<String, Integer> SIZES = new LinkedHashMap<>();

  static {
    String[] names = "BOOL U8 I8 U16 I16 F16 BF16 U32 I32 F32 U64 I64 F64".split(" ");
    for (int i = 0; i < names.length; i++) {
      SIZES.put(names[i], i < 3 ? 1 : i < 7 ? 2 : i < 10 ? 4 : 8);
    }
  }

  /** A tensor: its type by the name that messages have for it, its shape, where its values are. */
  static final class Entry {
    final String dtype;
    final long[] dims;
    final long begin;
    final long end;

    private Entry(String dtype, long[] dims, long[] offsets) {
      this.dtype = dtype;
      this.dims = dims;
      begin = offsets[0];
      end = offsets[1];
    }
  }

  final String kind;
  final String model;
  final String round;
  final Map<String, Object> config = new LinkedHashMap<>();
  final Map<String, Entry> tensors = new LinkedHashMap<>();
  private final byte[] content;
  private final int start;

  Request(byte[] content) {
    this.content = content;
    long size = content.length < 8 ? -1 : order(ByteBuffer.wrap(content)).getLong();
    if (size < 0 || size > MOST || size > content.length - 8) {
      String fault = "no header, a truncated one, or one of more than " + MOST + " bytes";
      throw Model.refuse("message: " + content.length + " bytes: " + fault);
    }
    start = 8 + (int) size;
    Object header = Json.read(decode(content, (int) size));
    if (!(header instanceof Map)) {
      throw Model.refuse("message: the header is not a JSON object");
    }
    Map<?, ?> texts = null;
    for (Map.Entry<?, ?> each : ((Map<?, ?>) header).entrySet()) {
      if (each.getKey().equals("__metadata__")) {
        texts = each.getValue() instanceof Map ? (Map<?, ?>) each.getValue() : null;
      } else {
        tensors.put((String) each.getKey(), readEntry(each.getKey(), each.getValue()));
      }
    }
    checkPlaces();
    if (texts == null || !texts.values().stream().allMatch(text -> text instanceof String)) {
      throw Model.refuse("message: its metadata are not an object of texts");
    }
    if (!"1".equals(texts.get("edgegrad.message"))) {
      throw Model.refuse("message: not a message of a federation, or of another version");
    }
    kind = String.valueOf(texts.get("kind"));
    model = String.valueOf(texts.get("model"));
    round = String.valueOf(texts.get("round"));
    if (!kind.matches("train|evaluate") || tensors.isEmpty()) {
      String asked = "kind '" + kind + "' with " + tensors.size() + " tensors";
      throw Model.refuse("message: " + asked + "; expected a request");
    }
    if (!model.matches("[0-9a-f]{16}") || !round.matches("0|[1-9][0-9]{0,17}")) {
      throw Model.refuse("message: no such model or round: '" + model + "', '" + round + "'");
    }
    texts.forEach((name, text) -> readOption((String) name, (String) text));
  }

  /** Return the values of a tensor, as little-endian bytes. */
  ByteBuffer values(Entry entry) {
    int begin = start + (int) entry.begin;
    return order(ByteBuffer.wrap(content, begin, (int) (entry.end - entry.begin)).slice());
  }

  /** Return an option that is a number. */
  double number(String name, double usual) {
    Object value = config.getOrDefault(name, usual);
    if (!(value instanceof Number)) {
      throw Model.refuse(name + " is " + value + "; expected a number");
    }
    return ((Number) value).doubleValue();
  }

  static ByteBuffer order(ByteBuffer buffer) {
    return buffer.order(ByteOrder.LITTLE_ENDIAN);
  }

  private static String decode(byte[] content, int size) {
    try {
      ByteBuffer bytes = ByteBuffer.wrap(content, 8, size);
      return StandardCharsets.UTF_8.newDecoder().decode(bytes).toString();
    } catch (CharacterCodingException error) {
      throw Model.refuse("message: the header is not a JSON object in UTF-8");
    }
  }

  private void readOption(String name, String text) {
    if (name.startsWith("config.")) {
      Object value = Json.read(text);
      if (value == null || value instanceof Map || value instanceof List) {
        String wanted = "; expected a JSON number, boolean or text";
        throw Model.refuse("message: '" + name + "' is '" + text + "'" + wanted);
      }
      config.put(name.substring(7), value);
    } else if (!FIELDS.contains(name)) {
      throw Model.refuse("message: unknown '" + name + "' in its metadata");
    }
  }

  private Entry readEntry(Object name, Object entry) {
    Map<?, ?> facts = entry instanceof Map ? (Map<?, ?>) entry : new LinkedHashMap<>();
    long[] dims = readWholes(facts.get("shape"));
    long[] offsets = readWholes(facts.get("data_offsets"));
    Integer each = SIZES.get(String.valueOf(facts.get("dtype")));
    boolean isTyped = facts.get("dtype") instanceof String && each != null;
    boolean isPlaced = offsets != null && offsets.length == 2 && offsets[1] >= offsets[0];
    boolean fits = isTyped && isPlaced && dims != null && dims.length <= 32;
    if (fits) {
      double size = each;
      for (long dim : dims) {
        size *= dim;
      }
      fits = size == offsets[1] - offsets[0] && offsets[1] <= content.length - start;
    }
    if (!fits) {
      throw Model.refuse("message: tensor '" + name + "' has a wrong type, shape or place");
    }
    return new Entry((String) facts.get("dtype"), dims, offsets);
  }

  /** Return a list of whole numbers from 0 on, or null if it is none. */
  private static long[] readWholes(Object list) {
    if (!(list instanceof List)) {
      return null;
    }
    List<?> values = (List<?>) list;
    boolean isWhole = values.stream().allMatch(v -> v instanceof Long && (Long) v >= 0);
    return isWhole ? values.stream().mapToLong(v -> (Long) v).toArray() : null;
  }

  /** Check that the tensors fill the data without overlap or gap. */
  private void checkPlaces() {
    List<Entry> places = new ArrayList<>(tensors.values());
    places.sort(Comparator.<Entry>comparingLong(e -> e.begin).thenComparingLong(e -> e.end));
    long end = 0;
    for (Entry each : places) {
      if (each.begin != end) {
        throw Model.refuse("message: the tensors overlap or leave a gap at " + end);
      }
      end = each.end;
    }
    if (end != content.length - start) {
      throw Model.refuse("message: " + (content.length - start - end) + " bytes after the tensors");
    }
  }
}
