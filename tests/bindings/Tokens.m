// What the decoder of every binding is put through, in Objective-C: tokens CHECKPOINT SCORES.
#import "MnistModel.h"

#include <stdio.h>

static FILE *file;

static void append(MnistModel *model, const int *tokens, NSUInteger count)
{
    NSError *error = nil;
    if (![model append:[NSData dataWithBytes:tokens length:4 * count] error:&error]) {
        printf("%s\n", error.localizedDescription.UTF8String);
        exit(1);
    }
    NSData *scores = [model scores];
    fwrite(scores.bytes, 1, scores.length, file);
}

static void refuse(BOOL done, NSError *error)
{
    if (done)
        printf("not refused\n");
    else
        printf("refused %s: %s\n", error.code == MnistErrorCodeBadLabel ? "BAD_LABEL" : "BAD_INPUT",
               error.localizedDescription.UTF8String);
}

int main(int argc, const char **argv)
{
    @autoreleasepool {
        NSError *error = nil;
        const int prompt[] = {5, 7, 9, 11, 13}, bad = 100, last = 8, many[26] = {0};
        file = argc == 3 ? fopen(argv[2], "wb") : NULL;
        MnistModel *model = [MnistModel create:[NSString stringWithUTF8String:argv[1]] error:&error];
        if (!file || !model)
            return 1;
        append(model, prompt, 5);
        for (int token = 3; token < 13; token++)
            append(model, &token, 1);
        refuse([model append:[NSData dataWithBytes:&bad length:4] error:&error], error);
        refuse([model append:[NSData dataWithBytes:many length:sizeof many] error:&error], error);
        refuse([model append:[NSData data] error:&error], error);
        refuse([model truncate:16 error:&error], error);
        printf("length %d of %d\n", (int)[model getLength], (int)[model getCapacity]);
        if (![model truncate:7 error:&error])
            return 1;
        printf("forgotten %s\n", [model scores] ? "false" : "true");
        append(model, &last, 1);
        fclose(file);
    }
    return 0;
}
