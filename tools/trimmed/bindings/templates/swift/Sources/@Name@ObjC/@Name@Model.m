#import "@Name@Model.h"

#import "@name@.h"

#include <limits.h>
#include <string.h>

#if __has_feature(objc_arc)
#define GIVEN_BACK(object) (object)
#else
#define GIVEN_BACK(object) [(object) autorelease]
#endif

NSString *const @Name@ErrorDomain = @"@name@";

static BOOL refuseWith(int code, NSString *message, NSError **error)
{
    if (error) {
        NSDictionary *facts = @{NSLocalizedDescriptionKey : message};
        *error = [NSError errorWithDomain:@Name@ErrorDomain code:code userInfo:facts];
    }
    return NO;
}

static NSString *textOf(const char *text)
{
    NSString *made = text ? [NSString stringWithUTF8String:text] : nil;
    return made ? made : @"";
}

static BOOL isText(NSString *place, NSString *text, NSError **error)
{
    const char *bytes = text.UTF8String;
    if (bytes && strlen(bytes) == [text lengthOfBytesUsingEncoding:NSUTF8StringEncoding])
        return YES;
    NSString *said = [place stringByAppendingString:@": expected text without null characters"];
    return refuseWith(@NAME@_BAD_INPUT, said, error);
}

static BOOL areNumbers(NSString *place, NSData *values, NSUInteger size, NSError **error)
{
    if (values.length % size == 0)
        return YES;
    NSString *form = @"%@: expected numbers of %lu bytes, got %lu bytes";
    NSString *said = [NSString
        stringWithFormat:form, place, (unsigned long)size, (unsigned long)values.length];
    return refuseWith(@NAME@_BAD_INPUT, said, error);
}

// Return the address of the bytes, never NULL: NULL would mean that there are no values.
static const void *addressOf(NSData *values)
{
    return values && !values.length ? "" : values.bytes;
}

// Return the same for values that C writes.
static void *roomOf(NSMutableData *values)
{
    static char none;
    return values && !values.length ? &none : values.mutableBytes;
}

static int clamp(NSInteger number)
{
    return number > INT_MAX ? INT_MAX : number < INT_MIN ? INT_MIN : (int)number;
}

static NSData *copyOf(const void *address, const @name@_tensor *tensor)
{
    return address && tensor ? [NSData dataWithBytes:address length:tensor->bytes] : nil;
}

static BOOL fits(NSData *values, const @name@_tensor *tensor, NSString *place, NSError **error)
{
    if ([values isKindOfClass:[NSData class]] && values.length == tensor->bytes)
        return YES;
    NSString *got = [values isKindOfClass:[NSData class]]
        ? [NSString stringWithFormat:@"%lu", (unsigned long)values.length]
        : NSStringFromClass([values class]);
    NSString *said = [NSString stringWithFormat:@"%@ '%s': expected data of %lu bytes, got %@", place,
                                                tensor->name, (unsigned long)tensor->bytes, got];
    return refuseWith(@NAME@_BAD_INPUT, said, error);
}

static BOOL writeValues(
    NSData *values, void *address, const @name@_tensor *tensor, NSString *place, NSError **error)
{
    if (!address || !tensor) {
        NSString *said = [place stringByAppendingString:@": there is none at that index, or it takes no values"];
        return refuseWith(@NAME@_BAD_INPUT, said, error);
    }
    if (!fits(values, tensor, place, error))
        return NO;
    memcpy(address, values.bytes, tensor->bytes);
    return YES;
}

@implementation @Name@Tensor

@synthesize name = _name, dtype = _dtype, dims = _dims, bytes = _bytes, trainable = _trainable;

- (instancetype)initWithTensor:(const @name@_tensor *)tensor
{
    if ((self = [super init])) {
        NSMutableArray<NSNumber *> *dims = [NSMutableArray array];
        for (int axis = 0; axis < tensor->rank; axis++)
            [dims addObject:@(tensor->dims[axis])];
        _name = [textOf(tensor->name) copy];
        _dtype = (@Name@Dtype)tensor->dtype;
        _dims = [dims copy];
        _bytes = tensor->bytes;
        _trainable = tensor->trainable != 0;
    }
    return self;
}

#if !__has_feature(objc_arc)
- (void)dealloc
{
    [_name release];
    [_dims release];
    [super dealloc];
}
#endif

@end

static @Name@Tensor *tensorOf(const @name@_tensor *tensor)
{
    return tensor ? GIVEN_BACK([[@Name@Tensor alloc] initWithTensor:tensor]) : nil;
}

@implementation @Name@Model

- (instancetype)initWithModel:(@name@ *)m
{
    if ((self = [super init]))
        _m = m;
    else
        @name@_destroy(m);
    return self;
}

static @Name@Model *makeModel(int code, @name@ *made, const char *why, NSError **error)
{
    if (code != @NAME@_OK) {
        refuseWith(code, textOf(why), error);
        return nil;
    }
    return GIVEN_BACK([[@Name@Model alloc] initWithModel:made]);
}

+ (instancetype)createWithoutValues:(NSError **)error
{
    @name@ *made = NULL;
    char why[@NAME@_MESSAGE_BYTES];
    int code = @name@_create(&made, NULL, why);
    return makeModel(code, made, why, error);
}

- (void)dealloc
{
    @name@_destroy(_m);
#if !__has_feature(objc_arc)
    [super dealloc];
#endif
}

- (void)close
{
    @synchronized(self) {
        @name@_destroy(_m);
        _m = NULL;
    }
}

- (BOOL)check:(int)code error:(NSError **)error
{
    if (code == @NAME@_OK)
        return YES;
    if (!_m)
        return refuseWith(@NAME@_BAD_STATE, @"the model was closed", error);
    return refuseWith(code, textOf(@name@_message(_m)), error);
}

//@if train_step or infer@
- (BOOL)place:(NSArray<NSData *> *)inputs phase:(@Name@Phase)phase error:(NSError **)error
{
    if (!inputs || !@name@_has_phase(_m, (int)phase))
        return YES; // the inputs are in place, or the step itself reports the error
    int count = @name@_input_count(_m, (int)phase);
    if (inputs.count != (NSUInteger)count) {
        NSString *names = @"";
        for (int index = 0; index < count; index++)
            names = [NSString stringWithFormat:@"%@%s%@", names, index ? ", " : "",
                                               textOf(@name@_input_info(_m, (int)phase, index)->name)];
        NSString *form = @"expected %d inputs [%@], got %lu";
        NSString *said = [NSString
            stringWithFormat:form, count, names, (unsigned long)inputs.count];
        return refuseWith(@NAME@_BAD_INPUT, said, error);
    }
    for (int index = 0; index < count; index++)
        if (!fits([inputs objectAtIndex:index], @name@_input_info(_m, (int)phase, index), @"input", error))
            return NO;
    for (int index = 0; index < count; index++) {
        NSData *values = [inputs objectAtIndex:index];
        memcpy(@name@_input(_m, (int)phase, index), values.bytes, values.length);
    }
    return YES;
}

- (NSArray<NSData *> *)outputs:(@Name@Phase)phase
{
    NSMutableArray<NSData *> *outputs = [NSMutableArray array];
    for (int index = 0; index < @name@_output_count(_m, (int)phase); index++) {
        const @name@_tensor *tensor = @name@_output_info(_m, (int)phase, index);
        [outputs addObject:copyOf(@name@_output(_m, (int)phase, index), tensor)];
    }
    return outputs;
}

//@end@
/*@objcMakers@*/

/*@objcMembers@*/

@end
