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
import java.lang.reflect.Array as ReflectArray
import kotlin.random.Random
/*@if train_step@*/
import kotlin.system.exitProcess
/*@end@*/

private val random = Random(1)

// Make up a batch for one input; a real program reads its data here.
private fun makeBatch(tensor: Tensor): Any {
  val values = tensor.makeArray()
  for (i in 0 until tensor.elements()) {
    when (tensor.dtype) {
      Dtype.F32, Dtype.F64 -> ReflectArray.setFloat(values, i, random.nextFloat())
      Dtype.BOOL -> ReflectArray.setBoolean(values, i, random.nextBoolean())
      else -> ReflectArray.setByte(values, i, random.nextInt(2).toByte())
    }
  }
  return values
}
/*@end@*/
/*@if append@*/

// Continue a text: append the token with the largest score, again and again.
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
/*@if train_step@*/
  if (arguments.size != 2) {
    System.err.println("usage: ExampleKt CHECKPOINT NEW_CHECKPOINT")
    exitProcess(2)
  }
/*@end@*/
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
    model.infer(*batch.toTypedArray()).forEach(::println)
/*@end@*/
/*@if append@*/
    continueText(model)
/*@end@*/
  }
}
