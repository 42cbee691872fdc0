// @purpose@ from Swift: swift run Example@arguments@.
//@if train_step@
import Foundation
//@end@
import @Name@

//@if train_step or infer@
// Make up a batch for one input; a real program reads its data here.
func makeBatch(_ tensor: Tensor) -> Numbers {
    switch tensor.dtype {
    case .f32: return (0..<tensor.elements).map { _ in Float.random(in: 0..<1) }
    case .f64: return (0..<tensor.elements).map { _ in Double.random(in: 0..<1) }
    case .bool: return (0..<tensor.elements).map { _ in Bool.random() }
    case .i64: return makeBits(tensor, of: Int64.self)
    case .i32: return makeBits(tensor, of: Int32.self)
    case .i16: return makeBits(tensor, of: Int16.self)
    case .i8: return makeBits(tensor, of: Int8.self)
    case .u64: return makeBits(tensor, of: UInt64.self)
    case .u32: return makeBits(tensor, of: UInt32.self)
    case .u16: return makeBits(tensor, of: UInt16.self)
    case .u8: return makeBits(tensor, of: UInt8.self)
    }
}

func makeBits<Element: FixedWidthInteger & Number>(_ tensor: Tensor, of: Element.Type) -> Numbers {
    return (0..<tensor.elements).map { _ in Element.random(in: 0...1) }
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
// Continue a text: append the token with the largest score, again and again.
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
//@if train_step@
if arguments.count != 3 {
    print("usage: Example CHECKPOINT NEW_CHECKPOINT")
    exit(2)
}
//@end@
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
    let values = output.tensor.dtype == .f32 ? "\(try output.floats().prefix(3))" : "\(output.tensor)"
    print("\(output.tensor.name): \(values) ...")
}
//@end@
//@if append@
try continueText(model)
//@end@
