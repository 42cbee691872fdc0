package edgegrad.@name@;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A reader of JSON: maps, lists, texts, numbers as Long or Double, booleans, null. */
final class Json {
  private static final int DEEPEST = 32;
  private static final Pattern NUMBER =
      Pattern.compile("-?(?:0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");

  private final String text;
  private int at;
  private int depth;

  private Json(String text) {
    this.text = text;
  }

  /** Read a whole text; a ModelException says what is wrong with it. */
  static Object read(String text) {
    Json json = new Json(text);
    Object value = json.value();
    if (json.peek() != 0) {
      throw json.refuse("more text");
    }
    return value;
  }

  /** Return a text as JSON. */
  static String quote(String text) {
    StringBuilder out = new StringBuilder("\"");
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') {
        out.append('\\').append(c);
      } else if (c < ' ') {
        out.append(String.format("\\u%04x", (int) c));
      } else {
        out.append(c);
      }
    }
    return out.append('"').toString();
  }

  private ModelException refuse(String what) {
    return Model.refuse("message: no JSON: " + what + " at " + at);
  }

  /** Return the next character that is no space; 0 at the end. */
  private char peek() {
    while (at < text.length() && " \t\n\r".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
    return at < text.length() ? text.charAt(at) : 0;
  }

  private boolean take(char wanted) {
    boolean isThere = peek() == wanted;
    at += isThere ? 1 : 0;
    return isThere;
  }

  private void expect(char wanted) {
    if (!take(wanted)) {
      throw refuse("'" + wanted + "' is missing");
    }
  }

  private Object value() {
    if (++depth > DEEPEST) {
      throw refuse("too deep");
    }
    char first = peek();
    Object value =
        first == '{' ? map() : first == '[' ? list() : first == '"' ? string() : plain();
    depth--;
    return value;
  }

  private Map<String, Object> map() {
    Map<String, Object> map = new LinkedHashMap<>();
    expect('{');
    while (!take('}')) {
      if (!map.isEmpty()) {
        expect(',');
      }
      peek();
      String name = string();
      expect(':');
      if (map.containsKey(name)) {
        throw Model.refuse("message: '" + name + "' twice");
      }
      map.put(name, value());
    }
    return map;
  }

  private List<Object> list() {
    List<Object> list = new ArrayList<>();
    expect('[');
    while (!take(']')) {
      if (!list.isEmpty()) {
        expect(',');
      }
      list.add(value());
    }
    return list;
  }

  private String string() {
    StringBuilder out = new StringBuilder();
    expect('"');
    while (at < text.length() && text.charAt(at) != '"') {
      char c = text.charAt(at++);
      if (c < ' ') {
        throw refuse("a control character");
      }
      out.append(c == '\\' ? escaped() : c);
    }
    expect('"');
    return out.toString();
  }

  private char escaped() {
    int plain = at < text.length() ? "\"\\/bfnrt".indexOf(text.charAt(at)) : -1;
    if (plain >= 0) {
      at++;
      return "\"\\/\b\f\n\r\t".charAt(plain);
    }
    if (!text.startsWith("u", at) || at + 5 > text.length()) {
      throw refuse("an unknown escape");
    }
    String digits = text.substring(at + 1, at + 5);
    if (!digits.matches("[0-9a-fA-F]{4}")) {
      throw refuse("an unknown escape");
    }
    at += 5;
    return (char) Integer.parseInt(digits, 16);
  }

  private Object plain() {
    for (String word : new String[] {"true", "false", "null"}) {
      if (text.startsWith(word, at)) {
        at += word.length();
        return word.equals("null") ? null : (Object) word.equals("true");
      }
    }
    Matcher number = NUMBER.matcher(text).region(at, text.length());
    if (!number.lookingAt()) {
      throw refuse("no value");
    }
    at = number.end();
    boolean isWhole = number.group(1) == null && number.group(2) == null;
    if (isWhole && number.group().length() <= 18) {
      return Long.valueOf(number.group());
    }
    return Double.valueOf(number.group());
  }
}
