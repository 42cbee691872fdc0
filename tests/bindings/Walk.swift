// Every method with values that nobody should pass: walk CHECKPOINT CALLS ROUNDS.
import Foundation
import Mnist

func text(_ word: String) -> String {
    return String(decoding: bytes(hex: word), as: UTF8.self)
}

func bytes(hex word: String) -> [UInt8] {
    let digits = Array(word.utf8.dropFirst())
    return stride(from: 0, to: digits.count, by: 2).map {
        UInt8(String(decoding: digits[$0...$0 + 1], as: UTF8.self), radix: 16)!
    }
}

func bytes(_ word: String) -> [UInt8] {
    return [UInt8](try! Data(contentsOf: URL(fileURLWithPath: word)))
}

func real(_ word: String) -> Float {
    return Float(bitPattern: UInt32(word)!)
}

func zeros<Element: Numeric>(_ word: String) -> [Element] {
    return [Element](repeating: 0, count: Int(word)!)
}

func numbers(_ word: String) -> Numbers {
    let parts = word.dropFirst(2).split(separator: "=")
    let count = Int(parts[0])!
    return word.hasPrefix("f")
        ? [Float](repeating: Float(parts[1])!, count: count)
        : [Int64](repeating: Int64(parts[1])!, count: count)
}

func inputs(_ word: String) -> [Numbers] {
    return word == "none" ? [] : word.split(separator: ",").map { numbers(String($0)) }
}

func tell<Answer>(_ answer: Answer?) -> String {
    switch answer {
    case .none: return "ok none"
    case let flag as Bool: return flag ? "ok 1" : "ok 0"
    case let number as Int: return "ok \(number)"
    case let number as Int64: return "ok \(number)"
    default: return "ok some"
    }
}

func make(_ name: String, _ m: Model, _ w: [String]) throws -> String {
    switch name {
/*@rows@*/
    default: fatalError(name)
    }
    return "ok"
}

func call(_ row: [String], _ m: Model) -> String {
    do {
        return try make(row[1], m, Array(row.dropFirst(2)))
    } catch let error as ModelError {
        return "\(error.code.rawValue) \(error.message)"
    } catch {
        return "other error: \(error)"
    }
}

let races = 100

// Two threads walk on until the model has ended, which this one closes meanwhile.
func race(_ rows: [[String]], _ path: String) throws {
    let m = try Model.create(path)
    let group = DispatchGroup()
    for start in [0, rows.count / 2] {
        DispatchQueue.global().async(group: group) {
            var at = start
            while !call(rows[at % rows.count], m).hasPrefix("5 the model was closed") {
                at += 1
            }
        }
    }
    usleep(UInt32.random(in: 0..<3000))
    m.close()
    m.close()
    group.wait()
}

func resident() throws -> Int {
    let text = try String(contentsOfFile: "/proc/self/statm", encoding: .utf8)
    return Int(text.split(separator: " ")[1])! * 4096
}

let words = CommandLine.arguments
let (live, ended) = (try Model.create(words[1]), try Model.create(words[1]))
let models = ["live": live, "bare": try Model.createWithoutValues(), "ended": ended]
ended.close()
ended.close()
let lines = try String(contentsOfFile: words[2], encoding: .utf8).split(separator: "\n")
let rows = lines.map { $0.split(separator: " ").map(String.init) }
for (index, row) in rows.enumerated() {
    let before = try live.checkpoint()
    let said = call(row, models[row[0]]!)
    let after = try live.checkpoint()
    print("\(index) \(said)\(said.hasPrefix("ok") || before == after ? "" : " changed")")
}
let racing = rows.filter { $0[0] == "live" }
for _ in 0..<races {
    try race(racing, words[1])
}
print("raced \(2 * races)")
var first = 0
let rounds = Int(words[3])!
for turn in 0..<rounds {
    for row in rows {
        _ = call(row, models[row[0]]!)
    }
    first = turn == rounds / 2 ? try resident() : first
}
print("grown \(max(0, try resident() - first) >> 20)")
