// @purpose@ from Swift: swift run Example@arguments@.
import @Name@

//@if train_step or infer@
// A batch for one input; a program would read its own here.
func makeBatch(_ tensor: Tensor) -> Numbers {
    if tensor.dtype == .f32 {
        return (0..<tensor.elements).map { _ in Float.random(in: 0..<1) }
    }
    return (0..<tensor.elements).map { _ in Int64.random(in: 0..<2) }
}

func writeBatches(_ model: Model, _ phase: Phase) throws {
    for index in 0..<model.inputCount(phase) {
        if let tensor = model.inputInfo(phase, index: index) {
            try model.setInput(phase, index: index, values: makeBatch(tensor))
        }
    }
}

//@end@
//@if append@
// Continue a text, each time by the token with the largest score.
func continueText(_ model: Model) throws {
    var text = "text:"
    var token = 0
    while model.getLength() < min(10, model.getCapacity()) {
        text += " \(token)"
        try model.append([Int32(token)])
        let scores = try model.scores()?.floats() ?? []
        token = scores.indices.max { scores[$0] < scores[$1] } ?? 0
    }
    print(text)
}

//@end@
let arguments = CommandLine.arguments
let model = try arguments.count > 1 ? Model.create(arguments[1]) : Model.createWithoutValues()
//@if train_step@
try model.setLearningRate(0.01)
for step in 1...20 {
    try writeBatches(model, .train)
    let loss = try model.trainStep()[0].item()
    if !model.isJoined() {
        try model.optimizerStep()
    }
    model.lazyResetGrad()
    print("step \(step): loss \(loss)")
}
try model.save(arguments[2], includeOptimizerState: true)
//@end@
//@if infer !train_step@
try writeBatches(model, .infer)
for output in try model.infer() {
    print("\(output.tensor.name): \(try output.floats().prefix(3)) ...")
}
//@end@
//@if append@
try continueText(model)
//@end@
