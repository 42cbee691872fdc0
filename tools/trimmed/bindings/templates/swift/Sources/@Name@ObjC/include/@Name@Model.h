// @purpose@ from Objective-C: each method calls the function of @name@.h with the same name.
//
//     NSError *error = nil;
//     @Name@Model *model = [@Name@Model create:@"checkpoint" error:&error];
//@if train_step@
//     [model setLearningRate:0.01f error:&error];
//     NSArray<NSData *> *outputs = [model trainStep:@[images, labels] error:&error];
//     float loss = *(const float *)outputs[0].bytes;
//     [model optimizerStep:&error];
//     [model lazyResetGrad];
//@end@
//@if infer !train_step@
//     NSArray<NSData *> *outputs = [model infer:@[images] error:&error];
//@end@
//@if append !train_step !infer@
//     [model append:tokens error:&error];
//     NSData *scores = [model scores];
//@end@
#import <Foundation/Foundation.h>

NS_ASSUME_NONNULL_BEGIN

/// The domain of errors, with the library's error codes and messages.
extern NSString *const @Name@ErrorDomain;

/*@objcEnums@*/

/// Name, type and shape of an input, an output or a parameter.
@interface @Name@Tensor : NSObject {
  @private
    NSString *_name;
    @Name@Dtype _dtype;
    NSArray<NSNumber *> *_dims;
    NSUInteger _bytes;
    BOOL _trainable;
}
@property(nonatomic, readonly, copy) NSString *name;
@property(nonatomic, readonly) @Name@Dtype dtype;
@property(nonatomic, readonly, copy) NSArray<NSNumber *> *dims;
@property(nonatomic, readonly) NSUInteger bytes;
@property(nonatomic, readonly, getter=isTrainable) BOOL trainable;
- (instancetype)init __attribute__((unavailable));
@end

/// A model.  Values are the bytes of tensors, in this processor's byte order; methods return
/// copies.  A refused call changes nothing, returns NO or nil, and sets an error.  Calls from
/// several threads wait for one another.  A model is freed with its last reference, or earlier by
/// `close`.
@interface @Name@Model : NSObject {
  @private
    struct @name@ *_m;
}
- (instancetype)init __attribute__((unavailable));

/// Free the model.
- (void)close;

/// Make a model without values; set them with `setParameters`.
+ (nullable instancetype)createWithoutValues:(NSError **)error;

/*@objcDeclarations@*/
@end

NS_ASSUME_NONNULL_END
