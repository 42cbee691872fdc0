import C@Name@
import Foundation

/// @purpose@. Each method calls the function of @name@.h with the same name. A refused call
/// throws a `ModelError` with the library's message. Calls from several threads wait for one
/// another. A model is freed with its last reference, or earlier by `close`.
///
///     let model = try Model.create("checkpoint")
//@if train_step@
///     let loss = try model.trainStep(images, labels)[0].item()
///     try model.optimizerStep()
///     model.lazyResetGrad()
//@end@
//@if infer !train_step@
///     let scores = try model.infer(images)[0].floats()
//@end@
//@if append !train_step !infer@
///     try model.append([1, 2, 3])
///     let scores = try model.scores()?.floats()
//@end@
public final class Model: @unchecked Sendable {
    private var m: OpaquePointer?
    private let lock = NSRecursiveLock()

    private init(_ code: Int32, _ made: OpaquePointer?, _ why: [CChar]) throws {
        if code != ErrorCode.ok.rawValue {
            throw ModelError(code, String(cString: why))
        }
        m = made
    }

    deinit {
        @name@_destroy(m)
    }

    /// Free the model.
    public func close() {
        locked {
            @name@_destroy(m)
            m = nil
        }
    }

/*@makers@*/

    /// Make a model without values; set them with `setParameters`.
    public static func createWithoutValues() throws -> Model {
        var made: OpaquePointer? = nil
        var why = [CChar](repeating: 0, count: @MESSAGE_BYTES@)
        let code = @name@_create(&made, nil, &why)
        return try Model(code, made, why)
    }

/*@members@*/

    // MARK: - calls

    private func locked<Answer>(_ body: () throws -> Answer) rethrows -> Answer {
        lock.lock()
        defer { lock.unlock() }
        return try body()
    }

    private func check(_ code: Int32) throws {
        if code == ErrorCode.ok.rawValue {
            return
        }
        if m == nil {
            throw ModelError(ErrorCode.badState.rawValue, "the model was closed")
        }
        throw ModelError(code, Model.text(@name@_message(m)))
    }

    private static func text(_ address: UnsafePointer<CChar>?) -> String {
        return address.map { String(cString: $0) } ?? ""
    }

    private static func checked(_ name: String, _ value: String) throws -> String {
        if value.utf8.contains(0) {
            throw ModelError(refused: "\(name): expected text without null characters")
        }
        return value
    }

    private func write(
        _ address: UnsafeMutableRawPointer?, _ tensor: Tensor?, _ place: String, _ values: Numbers
    ) throws {
        guard let address = address, let tensor = tensor else {
            throw ModelError(refused: "\(place): there is none at that index, or it takes no values")
        }
        try tensor.check(place, values)
        values.withBytes { bytes in
            UnsafeMutableRawBufferPointer(start: address, count: tensor.bytes).copyMemory(from: bytes)
        }
    }

//@if train_step or infer@
    private func place(_ phase: Phase, _ inputs: [Numbers]) throws {
        if inputs.isEmpty || !hasPhase(phase) {
            return  // the inputs are in place, or the step itself reports the error
        }
        let count = inputCount(phase)
        if inputs.count != count {
            let names = (0..<count).compactMap { inputInfo(phase, index: $0)?.name }
            throw ModelError(refused: "expected \(count) inputs \(names), got \(inputs.count)")
        }
        for (index, values) in inputs.enumerated() {
            if let tensor = inputInfo(phase, index: index) {
                try tensor.check("input '\(tensor.name)'", values)
            }
        }
        for (index, values) in inputs.enumerated() {
            try setInput(phase, index: index, values: values)
        }
    }

    private func outputs(_ phase: Phase) -> [Values] {
        return (0..<outputCount(phase)).compactMap { output(phase, index: $0) }
    }
//@end@
}
