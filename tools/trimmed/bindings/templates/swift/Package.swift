// swift-tools-version:5.7
// @purpose@: a Swift library, an Objective-C library, and the C module C@Name@.
import PackageDescription

let package = Package(
    name: "@Name@",
    platforms: [.macOS(.v11), .iOS(.v13)],
    products: [
        .library(name: "@Name@", targets: ["@Name@"]),
        .library(name: "@Name@ObjC", targets: ["@Name@ObjC"]),
    ],
    targets: [
        .binaryTarget(name: "C@Name@", path: "C@Name@.xcframework"),
        .target(name: "@Name@", dependencies: ["C@Name@"]),
        .target(name: "@Name@ObjC", dependencies: ["C@Name@"]),
        .executableTarget(name: "Example", dependencies: ["@Name@"], path: "Examples"),
        .executableTarget(name: "ExampleObjC", dependencies: ["@Name@ObjC"], path: "ExamplesObjC"),
    ]
)
