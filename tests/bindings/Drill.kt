import edgegrad.mnist.Model
import edgegrad.mnist.ModelException
import edgegrad.mnist.Phase
import edgegrad.mnist.batchSizes
import edgegrad.mnist.error
import edgegrad.mnist.inputTensors
import edgegrad.mnist.named
import edgegrad.mnist.outputTensors
import edgegrad.mnist.parameterTensors
import edgegrad.mnist.phases
import edgegrad.mnist.properties
import edgegrad.mnist.save
import edgegrad.mnist.train
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.concurrent.thread

// What every binding is put through, in Kotlin: CHECKPOINT STEPS OUT SESSIONS.

class Step(val rate: Float, val x: FloatArray, val y: LongArray)

class Steps(private val bytes: ByteArray, private val samples: Int, private val labels: Int) {
  operator fun get(k: Int): Step {
    val step = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
    step.position(k * (4 + 4 * samples + 8 * labels))
    val rate = step.getFloat()
    val x = FloatArray(samples) { step.getFloat() }
    return Step(rate, x, LongArray(labels) { step.getLong() })
  }
}

fun Model.take(step: Step, updates: Boolean = true): Int {
  learningRate = step.rate
  val loss =
    if (updates) train(step.x, step.y) else trainStep(step.x, step.y).named().values.first().item()
  return loss.toRawBits()
}

fun say(line: String) = System.out.write("$line\n".toByteArray())

fun refuse(call: () -> Unit) =
  try {
    call()
    say("not refused")
  } catch (error: ModelException) {
    say("refused ${error.error}: ${error.message}")
  }

fun resident() = File("/proc/self/statm").bufferedReader().readText().split(" ")[1].toLong() * 4096

fun main(arguments: Array<String>) {
  val (checkpoint, file, out) = arguments
  val model = Model.create(checkpoint)
  val (samples, labels) = model.inputTensors(Phase.TRAIN).map { it.elements() }
  val steps = Steps(File(file).readBytes(), samples, labels)
  check(model.phases == Phase.values().toList() && model.batchSizes == listOf(4L))
  check(model.outputTensors(Phase.INFER).size == 1 && model.parameterTensors.all { it.trainable })
  for (k in 0 until 9) {
    say("loss ${model.take(steps[k], updates = k != 3)}") // the next step adds to its gradients
  }
  val last = steps[9]
  say("eval ${model.evalStep(last.x, last.y)[0].item().toRawBits()}")
  say("predicted ${model.infer(last.x)[0].floats().size}")
  model.properties["note"] = "gr\u00fc\u00df"
  model.properties["count"] = 9007199254740993L
  check(model.properties["other"] == null)
  say("property ${model.properties["note"]} ${model.properties["count"]}")

  val before = model.checkpoint(true)
  refuse { model.trainStep(FloatArray(samples - 1), last.y) }
  refuse { model.trainStep(last.x, LongArray(labels) { 10 }) }
  refuse { model.learningRate = Float.NaN }
  refuse { model.setParameters(FloatArray(1), true) }
  refuse { Model.createFrom(before.copyOf(before.size / 2)) }
  refuse { Model.create("missing") }
  say("unchanged ${before.contentEquals(model.checkpoint(true))}")

  val resumed = Model.createFrom(before)
  refuse { resumed.optimizerStep() }
  say("round trip ${before.contentEquals(resumed.checkpoint(true))}")
  model.save(File(out))
  val opened = Model.create(out)
  val loss = model.take(last)
  say("loss $loss")
  say("alike ${resumed.take(last) == loss && opened.take(last) == loss}")
  model.save(File(out))
  val done = opened.step
  val turns = {
    for (k in 0 until 50) {
      opened.trainStep(last.x, last.y)
      opened.optimizerStep()
    }
  }
  val other = thread { turns() }
  turns()
  other.join()
  say("turns ${opened.step - done}")
  val values = model.parameters(true)
  resumed.setParameters(values, true)
  say("parameters ${values.size} ${values.contentEquals(resumed.parameters(true))}")
  refuse { model.parametersF64(true) }
  File("$out.onnx").writeBytes(model.exportModel())
  Model.create(out).use {
    it.take(last)
    it.setLinearRate(0.5f, 20, 40)
    say("rate ${it.learningRate}")
  }

  listOf(model, resumed, opened).forEach { it.close() }
  refuse { model.trainStep(last.x, last.y) }

  val sessions = arguments[3].toInt()
  var first = 0L
  for (k in 0 until sessions) {
    Model.createFrom(before).use {}
    first = if (k == sessions / 2) resident() else first
  }
  say("grown ${maxOf(0, resident() - first) shr 20}")
  System.out.flush()
}
