"""Objective-C: the class of Apple's package, with GNUstep's Foundation on this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.tools.trimmed import binary
from tests.bindings import drills
from tests.bindings.packages import NATIVE, make_package
from tests.bindings.programs import compile_objective_c, make_objective_c
from tests.support.builds import list_decoder_functions, needs_cc
from tests.support.needs import needs_gnustep
from tests.support.places import BINDINGS
from tests.support.shown import shows

SOURCES = "swift/Sources/MnistObjC"
FOUNDATION = """
#pragma clang system_header
#include <stdint.h>
#import <objc/NSObject.h>
#define NS_ASSUME_NONNULL_BEGIN _Pragma("clang assume_nonnull begin")
#define NS_ASSUME_NONNULL_END _Pragma("clang assume_nonnull end")
#define NS_ENUM(kind, name) enum name : kind name; enum name : kind
NS_ASSUME_NONNULL_BEGIN
@interface NSString : NSObject
@property(readonly, nullable) const char *UTF8String;
+ (nullable instancetype)stringWithUTF8String:(const char *)bytes;
+ (instancetype)stringWithFormat:(NSString *)form, ... __attribute__((format(__NSString__, 1, 2)));
- (NSString *)stringByAppendingString:(NSString *)other;
- (NSUInteger)lengthOfBytesUsingEncoding:(NSUInteger)encoding;
@end
enum { NSUTF8StringEncoding = 4 };
NSString *NSStringFromClass(Class kind);
extern NSString *const NSLocalizedDescriptionKey;
@interface NSNumber : NSObject
+ (NSNumber *)numberWithLongLong:(long long)number;
@end
@interface NSData : NSObject
@property(readonly) NSUInteger length;
@property(readonly) const void *bytes;
+ (instancetype)dataWithBytes:(nullable const void *)bytes length:(NSUInteger)length;
@end
@interface NSMutableData : NSData
@property(readonly) void *mutableBytes;
+ (nullable instancetype)dataWithLength:(NSUInteger)length;
@end
@interface NSArray<T> : NSObject
@property(readonly) NSUInteger count;
- (T)objectAtIndex:(NSUInteger)index;
@end
@interface NSMutableArray<T> : NSArray<T>
+ (instancetype)array;
- (void)addObject:(T)object;
@end
@interface NSDictionary<K, V> : NSObject
+ (instancetype)dictionaryWithObjects:(const V *)v forKeys:(const K *)k count:(NSUInteger)count;
@end
@interface NSError : NSObject
+ (instancetype)errorWithDomain:(NSString *)domain
                           code:(NSInteger)code
                       userInfo:(nullable NSDictionary<NSString *, id> *)facts;
@end
NS_ASSUME_NONNULL_END
"""


@needs_cc
@needs_gnustep
@pytest.mark.parametrize("case", ["mlp", pytest.param("cnn", marks=pytest.mark.whole)])
@shows("Objective-C", "Linux, x86-64", "run", "GNUstep")
def test_objective_c_trains_resumes_and_refuses(case: str, tmp_path: Path, sessions: str) -> None:
    """Over the library of this machine, which has the same functions as one for Apple's systems."""
    package, native = make_package(case, "swift", "macos-aarch64"), make_package(case, NATIVE)
    program = make_objective_c(package, BINDINGS / "Drill.m", tmp_path, native)
    drills.write_steps(case, tmp_path / "steps")
    words = (native / "checkpoint", tmp_path / "steps", tmp_path / "out", sessions)
    printed = program.run(*words)
    drills.check(printed, tmp_path / "out", case, exact=True)


def test_the_class_compiles_for_apple_with_and_without_arc(tmp_path: Path) -> None:
    """With declarations of what it uses of Foundation, which only Apple's SDK has."""
    package = make_package("mlp", "swift", "macos-aarch64")
    (tmp_path / "Foundation").mkdir()
    (tmp_path / "Foundation/Foundation.h").write_text(FOUNDATION)
    source, made = package / SOURCES / "MnistModel.m", tmp_path / "model.o"
    for option in ("-fobjc-arc", "-fno-objc-arc"):
        words = ["-target", "aarch64-macos", option, f"-I{tmp_path}", "-c", "-o", str(made)]
        compile_objective_c(source, package, *words)
        assert binary.read(made).system == "macos"


def test_the_class_has_every_function() -> None:
    package = make_package("mlp", "swift", "macos-aarch64")
    header = (package / "mnist.h").read_text()
    names = set(re.findall(r"(?m)^MNIST_API [^;]*?\b(mnist_\w+)\(", header))
    text = (package / SOURCES / "MnistModel.m").read_text()
    # A model in the caller's memory, and threads that a system would start, are for C alone.
    others = {f"mnist_{name}" for name in ("create_in", "worker", *list_decoder_functions())}
    assert names - set(re.findall(r"\bmnist_\w+", text)) == others
    declared = (package / SOURCES / "include/MnistModel.h").read_text()
    assert "/// Return the number of optimizer steps done, which AdamW's formulas use." in declared
