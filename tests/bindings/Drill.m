// What every binding is put through, in Objective-C: drill CHECKPOINT STEPS OUT SESSIONS.
#import "MnistModel.h"

#include <stdio.h>
#include <unistd.h>

static NSData *steps;
static NSUInteger samples, labels; // bytes of the inputs of a step

static NSArray<NSData *> *readInputs(int k)
{
    NSUInteger at = k * (4 + samples + labels) + 4;
    return @[
        [steps subdataWithRange:NSMakeRange(at, samples)],
        [steps subdataWithRange:NSMakeRange(at + samples, labels)]
    ];
}

static void need(BOOL done, NSError *error)
{
    if (!done) {
        printf("%s\n", error.localizedDescription.UTF8String);
        exit(1);
    }
}

static int train(MnistModel *model, int k)
{
    NSError *error = nil;
    float rate;
    [steps getBytes:&rate range:NSMakeRange(k * (4 + samples + labels), 4)];
    need([model setLearningRate:rate error:&error], error);
    NSArray<NSData *> *outputs = [model trainStep:readInputs(k) error:&error];
    need(outputs != nil, error);
    if (![model isJoined] && k != 3) { // the fifth step adds to the gradients of the fourth
        need([model optimizerStep:&error], error);
        [model lazyResetGrad];
    }
    return *(const int *)[[outputs objectAtIndex:0] bytes];
}

static void refuse(BOOL done, NSError *error)
{
    static const char *const codes[] = {"OK", "BAD_INPUT", "BAD_LABEL", "BAD_CHECKPOINT", "BAD_FILE", "BAD_STATE"};
    if (done || ![error.domain isEqual:MnistErrorDomain])
        printf("not refused\n");
    else
        printf("refused %s: %s\n", codes[error.code], error.localizedDescription.UTF8String);
}

static long readResident(void)
{
    long all, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &all, &resident) == 2)
        fclose(file);
    return resident * 4096;
}

@interface Turns : NSObject {
    MnistModel *_model;
    NSCondition *_done;
    BOOL _isDone;
}
@end

@implementation Turns
- (instancetype)initWithModel:(MnistModel *)model
{
    if ((self = [super init])) {
        _model = model;
        _done = [[NSCondition alloc] init];
    }
    return self;
}

- (void)take
{
    for (int k = 0; k < 50; k++) {
        [_model trainStep:readInputs(9) error:NULL];
        [_model optimizerStep:NULL];
    }
}

- (void)takeAside
{
    @autoreleasepool {
        [self take];
    }
    [_done lock];
    _isDone = YES;
    [_done signal];
    [_done unlock];
}

- (void)wait
{
    [_done lock];
    while (!_isDone)
        [_done wait];
    [_done unlock];
}
@end

static void drill(const char *const *arguments)
{
    NSError *error = nil;
    NSString *first = @(arguments[1]), *out = @(arguments[3]);
    steps = [[NSData alloc] initWithContentsOfFile:@(arguments[2])];
    MnistModel *model = [MnistModel create:first error:&error];
    need(model != nil, error);
    samples = [model inputInfo:MnistPhaseTrain index:0].bytes;
    labels = [model inputInfo:MnistPhaseTrain index:1].bytes;
    for (int k = 0; k < 9; k++)
        printf("loss %d\n", train(model, k));
    NSArray<NSData *> *last = readInputs(9);
    printf("eval %d\n", *(const int *)[[[model evalStep:last error:&error] objectAtIndex:0] bytes]);
    NSData *scores = [[model infer:@[ [last objectAtIndex:0] ] error:&error] objectAtIndex:0];
    printf("predicted %d\n", (int)(scores.length / 4));
    need([model setPropertyString:@"note" value:@"gr\u00fc\u00df" error:&error], error);
    need([model setPropertyInt:@"count" value:9007199254740993 error:&error], error);
    NSString *text = nil;
    int64_t integer = 0;
    need([model getProperty:1 name:NULL kind:NULL integer:NULL number:NULL text:&text error:&error], error);
    need([model getProperty:0 name:NULL kind:NULL integer:&integer number:NULL text:NULL error:NULL], nil);
    printf("property %s %lld\n", text.UTF8String, (long long)integer);

    NSData *before = [model checkpoint:YES error:&error];
    int64_t wrong[1000];
    for (int k = 0; k < 1000; k++)
        wrong[k] = 10;
    NSData *tens = [NSData dataWithBytes:wrong length:labels];
    NSData *few = [[last objectAtIndex:0] subdataWithRange:NSMakeRange(0, samples - 4)];
    refuse([model trainStep:@[ few, [last objectAtIndex:1] ] error:&error] != nil, error);
    refuse([model trainStep:@[ [last objectAtIndex:0], tens ] error:&error] != nil, error);
    refuse([model setLearningRate:NAN error:&error], error);
    refuse([model setParameters:[NSData dataWithBytes:wrong length:4] trainableOnly:YES error:&error], error);
    NSData *half = [before subdataWithRange:NSMakeRange(0, before.length / 2)];
    refuse([MnistModel createFrom:half error:&error] != nil, error);
    refuse([MnistModel create:@"missing" error:&error] != nil, error);
    printf("unchanged %s\n", [before isEqual:[model checkpoint:YES error:&error]] ? "true" : "false");

    MnistModel *resumed = [MnistModel createFrom:before error:&error];
    refuse([resumed optimizerStep:&error], error);
    printf("round trip %s\n", [before isEqual:[resumed checkpoint:YES error:&error]] ? "true" : "false");
    need([model save:out includeOptimizerState:YES error:&error], error);
    MnistModel *opened = [MnistModel create:out error:&error];
    int loss = train(model, 9);
    printf("loss %d\n", loss);
    printf("alike %s\n", train(resumed, 9) == loss && train(opened, 9) == loss ? "true" : "false");
    need([model save:out includeOptimizerState:YES error:&error], error);
    int64_t done = [opened getStep];
    Turns *turns = [[Turns alloc] initWithModel:opened];
    [NSThread detachNewThreadSelector:@selector(takeAside) toTarget:turns withObject:nil];
    [turns take];
    [turns wait];
    printf("turns %d\n", (int)([opened getStep] - done));
    NSData *values = [model parameters:YES error:&error];
    need([resumed setParameters:values trainableOnly:YES error:&error], error);
    BOOL same = [values isEqual:[resumed parameters:YES error:&error]];
    printf("parameters %d %s\n", (int)(values.length / 4), same ? "true" : "false");
    refuse([model parametersF64:YES error:&error] != nil, error);
    NSData *exported = [model exportModel:&error];
    need([exported writeToFile:[out stringByAppendingString:@".onnx"] atomically:NO], nil);
    MnistModel *session = [MnistModel create:out error:&error];
    need([session setStep:10 error:&error] && [session setLinearRate:0.5f warmup:20 total:40 error:&error], error);
    printf("rate %g\n", [session getLearningRate]);

    for (MnistModel *each in @[ model, resumed, opened, session ])
        [each close];
    refuse([model trainStep:last error:&error] != nil, error);

    int sessions = atoi(arguments[4]);
    long start = 0;
    for (int k = 0; k < sessions; k++) {
        @autoreleasepool {
            need([MnistModel createFrom:before error:&error] != nil, error); // its end is the pool's
        }
        start = k == sessions / 2 ? readResident() : start;
    }
    long grown = readResident() - start;
    printf("grown %ld\n", grown > 0 ? grown >> 20 : 0);
}

int main(int count, const char *const *arguments)
{
    @autoreleasepool {
        drill(count == 5 ? arguments : (exit(2), arguments));
    }
    return 0;
}
