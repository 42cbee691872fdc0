// What every binding is put through, in Swift: drill CHECKPOINT STEPS OUT SESSIONS.
import Foundation
import Mnist

let arguments = CommandLine.arguments
let content = [UInt8](try Data(contentsOf: URL(fileURLWithPath: arguments[2])))
let model = try Model.create(arguments[1])
let samples = model.inputInfo(.train, index: 0)!.elements
let labels = model.inputInfo(.train, index: 1)!.elements

func take<Element>(_ at: Int, _ count: Int, _ zero: Element) -> [Element] {
    var values = [Element](repeating: zero, count: count)
    let size = count * MemoryLayout<Element>.size
    values.withUnsafeMutableBytes { $0.copyBytes(from: content[at..<at + size]) }
    return values
}

func start(_ k: Int) -> Int { return k * (4 + 4 * samples + 8 * labels) }
func readSamples(_ k: Int) -> [Float] { return take(start(k) + 4, samples, 0) }
func readLabels(_ k: Int) -> [Int64] { return take(start(k) + 4 + 4 * samples, labels, 0) }
func bits(_ value: Float) -> Int32 { return Int32(bitPattern: value.bitPattern) }

func train(_ model: Model, _ k: Int) throws -> Int32 {
    try model.setLearningRate(take(start(k), 1, Float(0))[0])
    let loss = try model.trainStep(readSamples(k), readLabels(k))[0].item()
    if !model.isJoined() && k != 3 {  // the fifth step adds to the gradients of the fourth
        try model.optimizerStep()
        model.lazyResetGrad()
    }
    return bits(loss)
}

func name(_ code: ErrorCode) -> String {
    return "\(code)".reduce(into: "") { name, letter in
        name += (letter.isUppercase ? "_" : "") + letter.uppercased()
    }
}

func refuse(_ call: () throws -> Void) {
    do {
        try call()
        print("not refused")
    } catch let error as ModelError {
        print("refused \(name(error.code)): \(error.message)")
    } catch {
        print("another error: \(error)")
    }
}

func countResident() throws -> Int {
    let text = try String(contentsOfFile: "/proc/self/statm", encoding: .utf8)
    return Int(text.split(separator: " ")[1])! * 4096
}

for k in 0..<9 {
    print("loss \(try train(model, k))")
}
let (x, y) = (readSamples(9), readLabels(9))
print("eval \(bits(try model.evalStep(x, y)[0].item()))")
print("predicted \(try model.infer(x)[0].floats().count)")
try model.setPropertyString("note", value: "gr\u{fc}\u{df}")
try model.setPropertyInt("count", value: 9_007_199_254_740_993)
print("property \(try model.getProperty(1).text) \(try model.getProperty(0).integer)")

let before = try model.checkpoint()
let tens = [Int64](repeating: 10, count: labels)
refuse { _ = try model.trainStep(Array(x.dropFirst()), y) }
refuse { _ = try model.trainStep(x, tens) }
refuse { try model.setLearningRate(.nan) }
refuse { try model.setParameters([0], trainableOnly: true) }
refuse { _ = try Model.createFrom(Array(before.prefix(before.count / 2))) }
refuse { _ = try Model.create("missing") }
print("unchanged \(before == (try model.checkpoint()))")

let resumed = try Model.createFrom(before)
refuse { try resumed.optimizerStep() }
print("round trip \(before == (try resumed.checkpoint()))")
try model.save(arguments[3], includeOptimizerState: true)
let opened = try Model.create(arguments[3])
let loss = try train(model, 9)
print("loss \(loss)")
let others = [try train(resumed, 9), try train(opened, 9)]
print("alike \(others == [loss, loss])")
try model.save(arguments[3], includeOptimizerState: true)
let done = opened.getStep()
let (shared, mine, own) = (opened, x, y)
DispatchQueue.concurrentPerform(iterations: 2) { _ in
    for _ in 0..<50 {
        _ = try? shared.trainStep(mine, own)
        try? shared.optimizerStep()
    }
}
print("turns \(opened.getStep() - done)")
let values = try model.parameters()
try resumed.setParameters(values, trainableOnly: true)
print("parameters \(values.count) \(values == (try resumed.parameters()))")
refuse { _ = try model.parametersF64() }
try Data(model.exportModel()).write(to: URL(fileURLWithPath: arguments[3] + ".onnx"))
try model.setStep(10)
try model.setLinearRate(0.5, warmup: 20, total: 40)
print("rate \(model.getLearningRate())")

for each in [model, resumed, opened] {
    each.close()
}
refuse { _ = try model.trainStep(x, y) }

let sessions = Int(arguments[4])!
var first = 0
for k in 0..<sessions {
    _ = try Model.createFrom(before)
    first = k == sessions / 2 ? try countResident() : first
}
print("grown \(max(0, try countResident() - first) >> 20)")
