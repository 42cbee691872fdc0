import edgegrad.mnist.Model
import edgegrad.mnist.ModelException
import edgegrad.mnist.error
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

// What the decoder of every binding is put through, in Kotlin: CHECKPOINT SCORES.

fun Model.answer(vararg tokens: Int): ByteArray {
  append(tokens)
  val scores = scores().floats()
  val bytes = ByteBuffer.allocate(4 * scores.size).order(ByteOrder.LITTLE_ENDIAN)
  for (score in scores) bytes.putFloat(score)
  return bytes.array()
}

fun refuseCall(call: () -> Unit) {
  try {
    call()
    println("not refused")
  } catch (refused: ModelException) {
    println("refused ${refused.error}: ${refused.message}")
  }
}

fun main(args: Array<String>) {
  Model.create(args[0]).use { model ->
    var scores = model.answer(5, 7, 9, 11, 13)
    for (token in 3 until 13) scores += model.answer(token)
    refuseCall { model.append(intArrayOf(100)) }
    refuseCall { model.append(IntArray(26)) }
    refuseCall { model.append(IntArray(0)) }
    refuseCall { model.truncate(16) }
    println("length ${model.length} of ${model.capacity}")
    model.truncate(7)
    println("forgotten ${model.scores() == null}")
    File(args[1]).writeBytes(scores + model.answer(8))
  }
}
