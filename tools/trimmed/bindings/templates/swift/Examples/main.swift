// Training from Swift: swift run Example ../checkpoint out.
import @Name@

// A batch for one input; a program would read its own here.
func makeBatch(_ tensor: Tensor) -> Numbers {
    if tensor.dtype == .f32 {
        return (0..<tensor.elements).map { _ in Float.random(in: 0..<1) }
    }
    return (0..<tensor.elements).map { _ in Int64.random(in: 0..<2) }
}

let model = try Model.create(CommandLine.arguments[1])
try model.setLearningRate(0.01)
let tensors = (0..<model.inputCount(.train)).compactMap { model.inputInfo(.train, index: $0) }
for step in 1...20 {
    for (index, tensor) in tensors.enumerated() {
        try model.setInput(.train, index: index, values: makeBatch(tensor))
    }
    let loss = try model.trainStep()[0].item()
    if !model.isJoined() {
        try model.optimizerStep()
    }
    model.lazyResetGrad()
    print("step \(step): loss \(loss)")
}
try model.save(CommandLine.arguments[2], includeOptimizerState: true)
