// Calls that are refused, in Swift: hostile CHECKPOINT OTHER.  Each throws the message of C, changes
// nothing and, a thousand times over, loses no memory.
import Foundation
import Mnist

let content = [UInt8](try Data(contentsOf: URL(fileURLWithPath: CommandLine.arguments[1])))
let other = [UInt8](try Data(contentsOf: URL(fileURLWithPath: CommandLine.arguments[2])))
let (model, closed) = (try Model.createFrom(content), try Model.createFrom(content))
closed.close()
let x = [Float](repeating: 0, count: model.inputInfo(.train, index: 0)!.elements)
let y = [Int64](repeating: 0, count: model.inputInfo(.train, index: 1)!.elements)

// Make models where the process may take no more memory.
func makeWithoutMemory() throws {
    var before = rlimit()
    getrlimit(__rlimit_resource_t(9), &before)  // RLIMIT_AS
    var none = rlimit(rlim_cur: 1, rlim_max: before.rlim_max)
    setrlimit(__rlimit_resource_t(9), &none)
    defer { setrlimit(__rlimit_resource_t(9), &before) }
    var kept: [Model] = []
    kept.reserveCapacity(10_000)
    while kept.count < 10_000 {
        kept.append(try Model.createFrom(content))
    }
}

let calls: [() throws -> Void] = [
    { _ = try model.trainStep(Array(x.dropLast()), y) },
    { _ = try model.trainStep(x) },
    { try Model.createFrom(content).optimizerStep() },
    { _ = try Model.createFrom(other) },
    { _ = try Model.createFrom([UInt8](repeating: 0, count: 9)) },
    { try model.setPropertyInt("a\0b", value: 1) },
    makeWithoutMemory,
    { _ = try closed.trainStep(x, y) },
]
let codes: [ErrorCode: String] = [
    .badInput: "BAD_INPUT", .badState: "BAD_STATE", .badCheckpoint: "BAD_CHECKPOINT",
    .noMemory: "NO_MEMORY",
]

func countResident() throws -> Int {
    let text = try String(contentsOfFile: "/proc/self/statm", encoding: .utf8)
    return Int(text.split(separator: " ")[1])! * 4096
}

let before = try model.checkpoint()
for call in calls {
    do {
        try call()
        print("not refused")
    } catch let error as ModelError {
        print("refused \(codes[error.code] ?? "\(error.code)"): \(error.message)")
    }
}
var first = 0
for turn in 0..<1000 {
    for (index, call) in calls.enumerated() where index != 6 || turn < 3 {
        try? call()
    }
    first = turn == 500 ? try countResident() : first
}
print("grown \(max(0, try countResident() - first) >> 20)")
print("unchanged \(before == (try model.checkpoint()))")
