import C@Name@
import Foundation

/// The error of a refused call: the library's error code and its message.
public struct ModelError: LocalizedError, CustomStringConvertible, Sendable {
    public let code: ErrorCode
    public let message: String

    init(_ code: Int32, _ message: String) {
        self.code = ErrorCode(rawValue: code) ?? .badState
        self.message = message
    }

    init(refused message: String) {
        self.init(ErrorCode.badInput.rawValue, message)
    }

    public var description: String { return message }

    /// The text of `localizedDescription`.
    public var errorDescription: String? { return message }
}

/*@enums@*/

/// An element type.
public protocol Number {
    static var dtype: Dtype { get }
}

extension Float: Number { public static var dtype: Dtype { return .f32 } }
extension Double: Number { public static var dtype: Dtype { return .f64 } }
extension Int64: Number { public static var dtype: Dtype { return .i64 } }
extension Int32: Number { public static var dtype: Dtype { return .i32 } }
extension Int16: Number { public static var dtype: Dtype { return .i16 } }
extension Int8: Number { public static var dtype: Dtype { return .i8 } }
extension UInt64: Number { public static var dtype: Dtype { return .u64 } }
extension UInt32: Number { public static var dtype: Dtype { return .u32 } }
extension UInt16: Number { public static var dtype: Dtype { return .u16 } }
extension UInt8: Number { public static var dtype: Dtype { return .u8 } }
extension Bool: Number { public static var dtype: Dtype { return .bool } }

/// Values for an input or a parameter: an array of numbers.
public protocol Numbers {
    var dtype: Dtype { get }
    var count: Int { get }
    func withBytes<Answer>(_ body: (UnsafeRawBufferPointer) throws -> Answer) rethrows -> Answer
}

extension Array: Numbers where Element: Number {
    public var dtype: Dtype { return Element.dtype }

    public func withBytes<Answer>(
        _ body: (UnsafeRawBufferPointer) throws -> Answer
    ) rethrows -> Answer {
        return try withUnsafeBytes(body)
    }
}

/// Name, type and shape of an input, an output or a parameter.
public struct Tensor: Sendable {
    public let name: String
    public let dtype: Dtype
    public let dims: [Int64]
    public let bytes: Int
    public let trainable: Bool

    /// The number of elements.
    public var elements: Int { return dims.reduce(1) { $0 * Int($1) } }

    init?(_ address: UnsafePointer<@name@_tensor>?) {
        guard let tensor = address?.pointee, let dtype = Dtype(rawValue: tensor.dtype) else {
            return nil
        }
        name = String(cString: tensor.name)
        self.dtype = dtype
        dims = Array(UnsafeBufferPointer(start: tensor.dims, count: Int(tensor.rank)))
        bytes = tensor.bytes
        trainable = tensor.trainable != 0
    }

    func check(_ place: String, _ values: Numbers) throws {
        if values.dtype != dtype || values.count != elements {
            let wanted = "\(dtype) of \(elements) elements, \(dims)"
            throw ModelError(
                refused: "\(place): expected \(wanted), got \(values.dtype) of \(values.count) elements")
        }
    }
}

/// Values of an output or a parameter: a copy.
public struct Values: Sendable {
    public let tensor: Tensor
    public let bytes: [UInt8]

    init?(_ address: UnsafeRawPointer?, _ tensor: Tensor?) {
        guard let address = address, let tensor = tensor else {
            return nil
        }
        self.tensor = tensor
        bytes = Array(UnsafeRawBufferPointer(start: address, count: tensor.bytes))
    }

    init?(_ address: UnsafeMutableRawPointer?, _ tensor: Tensor?) {
        self.init(UnsafeRawPointer(address), tensor)
    }

    /// Return the values as numbers of the tensor's type.
    public func array<Element: Number>(of type: Element.Type) throws -> [Element] {
        if type.dtype != tensor.dtype {
            throw ModelError(refused: "'\(tensor.name)' has values of \(tensor.dtype), not \(type.dtype)")
        }
        return Array(unsafeUninitializedCapacity: tensor.elements) { numbers, count in
            UnsafeMutableRawBufferPointer(numbers).copyBytes(from: bytes)
            count = tensor.elements
        }
    }

    /// Return the values as floats.
    public func floats() throws -> [Float] {
        return try array(of: Float.self)
    }

    /// Return the first value as a float, such as the loss.
    public func item() throws -> Float {
        return try tensor.dtype == .f64 ? Float(array(of: Double.self)[0]) : floats()[0]
    }
}
