// Every method with values that nobody should pass: Walk CHECKPOINT CALLS ROUNDS.
import edgegrad.mnist.Model
import edgegrad.mnist.ModelException
import edgegrad.mnist.Phase
import java.io.File
import kotlin.concurrent.thread

private fun text(word: String): String? =
  if (word == "null") null
  else String(ByteArray(word.length / 2) { word.substring(1 + 2 * it, 3 + 2 * it).toInt(16).toByte() })

private fun phase(word: String): Phase? = if (word == "null") null else Phase.of(word.toInt())

private fun float(word: String): Float = Float.fromBits(word.toLong().toInt())

private fun bytes(word: String): ByteArray? = if (word == "null") null else File(word).readBytes()

private fun buffer(word: String): ByteArray? = if (word == "null") null else ByteArray(word.toInt())

private fun floats(word: String): FloatArray? = if (word == "null") null else FloatArray(word.toInt())

private fun doubles(word: String): DoubleArray? =
  if (word == "null") null else DoubleArray(word.toInt())

private fun numbers(word: String): Any? {
  if (word == "null") {
    return null
  }
  val (count, value) = word.substring(2).split("=")
  if (word[0] == 'l') {
    return LongArray(count.toInt()) { value.toLong() }
  }
  return FloatArray(count.toInt()) { if (value == "nan") Float.NaN else value.toFloat() }
}

private fun inputs(word: String): Array<Any?> =
  if (word == "none") arrayOf() else word.split(",").map { numbers(it) }.toTypedArray()

private val calls: Map<String, (Model, List<String>) -> Any?> =
  mapOf(
/*@rows@*/
    "" to { _, _ -> null }
  )

private fun tell(answer: Any?): String =
  when (answer) {
    Unit -> "ok"
    null -> "ok none"
    is Boolean -> if (answer) "ok 1" else "ok 0"
    is Int, is Long -> "ok $answer"
    else -> "ok some"
  }

private fun call(row: List<String>, m: Model): String =
  try {
    tell(calls[row[1]]!!(m, row.drop(2)))
  } catch (error: ModelException) {
    "${error.code} ${error.message}"
  } catch (error: RuntimeException) {
    "other error: $error"
  }

private const val RACES = 100

/** Two threads walk on until the model has ended, which this one closes meanwhile. */
private fun race(rows: List<List<String>>, path: String) {
  val m = Model.create(path)
  val others =
    listOf(0, rows.size / 2).map { start ->
      thread {
        var at = start
        while (!call(rows[at % rows.size], m).startsWith("5 the model was closed")) {
          at++
        }
      }
    }
  Thread.sleep((3 * Math.random()).toLong())
  m.close()
  m.close()
  others.forEach { it.join() }
}

private fun resident(): Long {
  System.gc()
  return File("/proc/self/statm").readLines()[0].split(" ")[1].toLong() * 4096
}

fun main(arguments: Array<String>) {
  val live = Model.create(arguments[0])
  val ended = Model.create(arguments[0])
  val models = mapOf("live" to live, "bare" to Model.createFrom(null), "ended" to ended)
  ended.close()
  ended.close()
  val rows = File(arguments[1]).readLines().map { it.split(" ") }
  rows.forEachIndexed { index, row ->
    val before = live.checkpoint(true)
    val said = call(row, models.getValue(row[0]))
    val isSame = said.startsWith("ok") || before.contentEquals(live.checkpoint(true))
    println("$index $said${if (isSame) "" else " changed"}")
  }
  val racing = rows.filter { it[0] == "live" }
  repeat(RACES) { race(racing, arguments[0]) }
  println("raced ${2 * RACES}")
  val rounds = arguments[2].toInt()
  var first = 0L
  for (turn in 0 until rounds) {
    rows.forEach { call(it, models.getValue(it[0])) }
    first = if (turn == rounds / 2) resident() else first
  }
  println("grown ${maxOf(0, resident() - first) shr 20}")
}
