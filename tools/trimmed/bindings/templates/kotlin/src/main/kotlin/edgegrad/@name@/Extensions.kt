/*
 * Idiomatic Kotlin for the Java class Model.  Its getters and setters are properties in Kotlin, as in
 * `model.learningRate = 0.01f`.
 *
 *     Model.create("checkpoint").use { model ->
/*@if train_step@*/
 *       for ((images, labels) in batches) println(model.train(images, labels))
 *       model.save(File("checkpoint"))
/*@end@*/
/*@if infer !train_step@*/
 *       println(model.infer(images).named())
/*@end@*/
/*@if append !train_step !infer@*/
 *       model.append(tokens)
 *       println(model.scores())
/*@end@*/
 *     }
 */
package edgegrad.@name@

/*@if save@*/
import java.io.File

/*@end@*/
/** The [ErrorCode] of a refused call. */
val ModelException.error: ErrorCode
  get() = ErrorCode.of(code)

/** The phases that the model has. */
val Model.phases: List<Phase>
  get() = Phase.values().filter { hasPhase(it) }

/** The batch sizes that the model has plans for. */
val Model.batchSizes: List<Long>
  get() = List(batchCount()) { batchSize(it) }

/** Name, type and shape of each input of a phase. */
fun Model.inputTensors(phase: Phase): List<Tensor> = List(inputCount(phase)) { inputInfo(phase, it) }

/** Name, type and shape of each output of a phase. */
fun Model.outputTensors(phase: Phase): List<Tensor> =
  List(outputCount(phase)) { outputInfo(phase, it) }

/** Name, type and shape of each parameter. */
val Model.parameterTensors: List<Tensor>
  get() = List(parameterCount()) { parameterInfo(it) }

/*@if train_step@*/
/** Train on one batch: forward, backward, update. Return the loss. */
fun Model.train(vararg inputs: Any): Float {
  val loss = trainStep(*inputs)[0].item()
  if (!isJoined) {
    optimizerStep()
  }
  lazyResetGrad()
  return loss
}

/** Write a checkpoint file, by default with the optimizer's state. */
fun Model.save(file: File, includeOptimizerState: Boolean = true) =
  save(file.path, includeOptimizerState)

/*@end@*/
/** The outputs of a step by name. */
fun Array<Values>.named(): Map<String, Values> = associateBy { it.tensor.name }

/** User data in the checkpoint: numbers and texts by name. */
val Model.properties: ModelProperties
  get() = ModelProperties(this)

/** A view of a model's properties, which are [Long], [Float] or [String]. */
class ModelProperties internal constructor(private val model: Model) {
  /** Return a copy of all properties. */
  fun toMap(): Map<String, Any> =
    (0 until model.propertyCount()).map { model.getProperty(it) }.associate { it.name to value(it) }

  /** Return a property, or null if there is none with that name. */
  operator fun get(name: String): Any? = toMap()[name]

/*@if set_property_int@*/
  operator fun set(name: String, value: Long) = model.setPropertyInt(name, value)

  operator fun set(name: String, value: Float) = model.setPropertyFloat(name, value)

  operator fun set(name: String, value: String) = model.setPropertyString(name, value)

/*@end@*/
  private fun value(property: Model.Property): Any =
    when (property.kind) {
      PropertyKind.INT -> property.integer
      PropertyKind.FLOAT -> property.number
      else -> property.text
    }
}
