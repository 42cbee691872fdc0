// @purpose@ from Objective-C: swift run ExampleObjC@arguments@.
#import "@Name@Model.h"

#include <stdio.h>
#include <stdlib.h>

static void need(BOOL done, NSError *error)
{
    if (!done) {
        fprintf(stderr, "%s\n", error.localizedDescription.UTF8String);
        exit(1);
    }
}

//@if train_step or infer@
// Make up a batch for each input; a real program reads its data here.
static NSArray<NSData *> *makeBatches(@Name@Model *model, @Name@Phase phase)
{
    NSMutableArray<NSData *> *batches = [NSMutableArray array];
    for (NSInteger index = 0; index < [model inputCount:phase]; index++) {
        @Name@Tensor *tensor = [model inputInfo:phase index:index];
        NSMutableData *values = [NSMutableData dataWithLength:tensor.bytes];
        NSUInteger count = 1;
        for (NSNumber *dim in tensor.dims)
            count *= dim.unsignedIntegerValue;
        for (NSUInteger k = 0; k < count; k++) {
            if (tensor.dtype == @Name@DtypeF32)
                ((float *)values.mutableBytes)[k] = (float)rand() / (float)RAND_MAX;
            else if (tensor.dtype == @Name@DtypeF64)
                ((double *)values.mutableBytes)[k] = (double)rand() / (double)RAND_MAX;
            else /* the lowest byte of an integer, in little-endian order */
                ((unsigned char *)values.mutableBytes)[k * (tensor.bytes / count)] = rand() % 2;
        }
        [batches addObject:values];
    }
    return batches;
}

//@end@
//@if train_step@
static void train(@Name@Model *model)
{
    NSError *error = nil;
    need([model setLearningRate:0.01f error:&error], error);
    for (int step = 1; step <= 20; step++) {
        NSArray<NSData *> *outputs = [model trainStep:makeBatches(model, @Name@PhaseTrain) error:&error];
        need(outputs != nil, error);
        if (![model isJoined])
            need([model optimizerStep:&error], error);
        [model lazyResetGrad];
        const void *loss = [[outputs objectAtIndex:0] bytes];
        BOOL isDouble = [model outputInfo:@Name@PhaseTrain index:0].dtype == @Name@DtypeF64;
        printf("step %d: loss %g\n", step, isDouble ? *(const double *)loss : *(const float *)loss);
    }
}

//@end@
//@if infer !train_step@
static void answer(@Name@Model *model)
{
    NSError *error = nil;
    NSArray<NSData *> *outputs = [model infer:makeBatches(model, @Name@PhaseInfer) error:&error];
    need(outputs != nil, error);
    for (NSUInteger index = 0; index < outputs.count; index++) {
        NSString *name = [model outputInfo:@Name@PhaseInfer index:(NSInteger)index].name;
        const float *values = [[outputs objectAtIndex:index] bytes];
        if ([model outputInfo:@Name@PhaseInfer index:(NSInteger)index].dtype == @Name@DtypeF32)
            printf("%s: %g %g ...\n", name.UTF8String, values[0], values[1]);
    }
}

//@end@
//@if append@
// Continue a text: append the token with the largest score, again and again.
static void continueText(@Name@Model *model)
{
    NSError *error = nil;
    int32_t token = 0;
    printf("text:");
    for (int k = 0; k < 10 && [model getLength] < [model getCapacity]; k++) {
        printf(" %d", token);
        need([model append:[NSData dataWithBytes:&token length:4] error:&error], error);
        NSData *scores = [model scores];
        const float *values = scores.bytes;
        token = 0;
        for (int32_t i = 1; i < (int32_t)(scores.length / 4); i++)
            if (values[i] > values[token])
                token = i;
    }
    printf("\n");
}

//@end@
int main(int count, const char *const *arguments)
{
    @autoreleasepool {
        NSError *error = nil;
//@if train_step@
        if (count != 3) {
            fprintf(stderr, "usage: ExampleObjC CHECKPOINT NEW_CHECKPOINT\n");
            return 2;
        }
//@end@
        NSString *path = count > 1 ? [NSString stringWithUTF8String:arguments[1]] : nil;
        @Name@Model *model = path ? [@Name@Model create:path error:&error]
                                  : [@Name@Model createWithoutValues:&error];
        need(model != nil, error);
//@if train_step@
        train(model);
        NSString *out = [NSString stringWithUTF8String:arguments[2]];
        need([model save:out includeOptimizerState:YES error:&error], error);
//@end@
//@if infer !train_step@
        answer(model);
//@end@
//@if append@
        continueText(model);
//@end@
    }
    return 0;
}
