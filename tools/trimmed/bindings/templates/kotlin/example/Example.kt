/*@if train_step or infer@*/
import edgegrad.@name@.Dtype
/*@end@*/
import edgegrad.@name@.Model
/*@if train_step or infer@*/
import edgegrad.@name@.Phase
import edgegrad.@name@.Tensor
import edgegrad.@name@.inputTensors
/*@end@*/
/*@if train_step@*/
import edgegrad.@name@.save
import edgegrad.@name@.train
import java.io.File
/*@end@*/
/*@if train_step or infer@*/
import kotlin.random.Random

private val random = Random(1)

// A batch for one input; a program would read its own here.
private fun makeBatch(tensor: Tensor): Any =
  if (tensor.dtype == Dtype.F32) FloatArray(tensor.elements()) { random.nextFloat() }
  else LongArray(tensor.elements()) { random.nextLong(2) }
/*@end@*/
/*@if append@*/

// Continue a text, each time by the token with the largest score.
private fun continueText(model: Model) {
  val text = mutableListOf(0)
  while (model.length + 1 < minOf(10L, model.capacity)) {
    model.append(intArrayOf(text.last()))
    val scores = model.scores().floats()
    text += scores.indices.fold(0) { best, i -> if (scores[i] > scores[best]) i else best }
  }
  println("text: ${text.joinToString(" ")}")
}
/*@end@*/

/** @purpose@ from Kotlin: java -cp JAR:src/main/resources ExampleKt@arguments@. */
fun main(arguments: Array<String>) {
  Model.create(arguments.firstOrNull()).use { model ->
/*@if train_step@*/
    model.learningRate = 0.01f
    for (step in 1..20) {
      val batch = model.inputTensors(Phase.TRAIN).map(::makeBatch)
      println("step $step: loss ${model.train(*batch.toTypedArray())}")
    }
    model.save(File(arguments[1]))
/*@end@*/
/*@if infer !train_step@*/
    val batch = model.inputTensors(Phase.INFER).map(::makeBatch)
    for (output in model.infer(*batch.toTypedArray())) {
      println("${output.tensor.name}: ${output.floats().take(3)} ...")
    }
/*@end@*/
/*@if append@*/
    continueText(model)
/*@end@*/
  }
}
