import edgegrad.@name@.Dtype
import edgegrad.@name@.Model
import edgegrad.@name@.Phase
import edgegrad.@name@.Tensor
import edgegrad.@name@.inputTensors
import edgegrad.@name@.save
import edgegrad.@name@.train
import java.io.File
import kotlin.random.Random

private val random = Random(1)

// A batch for one input; a program would read its own here.
private fun makeBatch(tensor: Tensor): Any =
  if (tensor.dtype == Dtype.F32) FloatArray(tensor.elements()) { random.nextFloat() }
  else LongArray(tensor.elements()) { random.nextLong(2) }

/** Training from Kotlin: java -cp JAR:src/main/resources ExampleKt ../checkpoint out. */
fun main(arguments: Array<String>) {
  Model.create(arguments[0]).use { model ->
    model.learningRate = 0.01f
    for (step in 1..20) {
      val batch = model.inputTensors(Phase.TRAIN).map(::makeBatch)
      println("step $step: loss ${model.train(*batch.toTypedArray())}")
    }
    model.save(File(arguments[1]))
  }
}
