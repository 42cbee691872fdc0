// Calls that are refused, in Objective-C: Hostile CHECKPOINT OTHER.  Each sets an NSError with the
// message of C, changes nothing and, a thousand times over, loses no memory.
#import "MnistModel.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static MnistModel *model, *closed;
static NSData *content, *other;

static NSData *makeZeros(NSUInteger size)
{
    return [NSMutableData dataWithLength:size];
}

static NSArray<NSData *> *makeInputs(NSUInteger shift)
{
    NSUInteger size = [model inputInfo:MnistPhaseTrain index:0].bytes;
    return @[ makeZeros(size - shift), makeZeros([model inputInfo:MnistPhaseTrain index:1].bytes) ];
}

// Make a model where the process may take no more memory.
static MnistModel *makeWithoutMemory(NSError **error)
{
    static char *held;
    struct rlimit before, none;
    getrlimit(RLIMIT_AS, &before);
    if (!held)
        held = malloc(1);
    none = before;
    none.rlim_cur = 1;
    setrlimit(RLIMIT_AS, &none);
    MnistModel *made = nil;
    NSMutableArray *kept = [NSMutableArray array];
    for (int k = 0; k < 10000 && (made = [MnistModel createFrom:content error:error]); k++)
        [kept addObject:made];
    setrlimit(RLIMIT_AS, &before);
    return made;
}

enum { CALLS = 8 };

static BOOL call(int index, NSError **error)
{
    switch (index) {
    case 0: return [model trainStep:makeInputs(4) error:error] != nil;
    case 1: return [model trainStep:@[ makeZeros(4) ] error:error] != nil;
    case 2: return [[MnistModel createFrom:content error:NULL] optimizerStep:error];
    case 3: return [MnistModel createFrom:other error:error] != nil;
    case 4: return [MnistModel createFrom:makeZeros(9) error:error] != nil;
    case 5: return [model setPropertyInt:@"a\0b" value:1 error:error];
    case 6: return makeWithoutMemory(error) != nil;
    default: return [closed trainStep:makeInputs(0) error:error] != nil;
    }
}

static long readResident(void)
{
    long all, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &all, &resident) == 2)
        fclose(file);
    return resident * 4096;
}

static const char *const codes[] = {
    "OK", "BAD_INPUT", "BAD_LABEL", "BAD_CHECKPOINT", "BAD_FILE", "BAD_STATE", "NO_MEMORY",
};

static void refuseEach(void)
{
    for (int index = 0; index < CALLS; index++) {
        NSError *error = nil;
        if (call(index, &error) || ![error.domain isEqual:MnistErrorDomain])
            printf("not refused\n");
        else
            printf("refused %s: %s\n", codes[error.code], error.localizedDescription.UTF8String);
    }
}

int main(int count, const char *const *arguments)
{
    if (count != 3)
        return 2;
    @autoreleasepool {
        content = [[NSData alloc] initWithContentsOfFile:[NSString stringWithUTF8String:arguments[1]]];
        other = [[NSData alloc] initWithContentsOfFile:[NSString stringWithUTF8String:arguments[2]]];
        model = [MnistModel createFrom:content error:NULL];
        closed = [MnistModel createFrom:content error:NULL];
        [closed close];
        NSData *before = [model checkpoint:YES error:NULL];
        refuseEach();
        long first = 0;
        for (int turn = 0; turn < 1000; turn++) {
            @autoreleasepool {
                for (int index = 0; index < CALLS; index++)
                    if (index != 6 || turn < 3)
                        call(index, NULL);
            }
            first = turn == 500 ? readResident() : first;
        }
        long grown = readResident() - first;
        printf("grown %ld\n", grown > 0 ? grown >> 20 : 0);
        printf("unchanged %s\n", [before isEqual:[model checkpoint:YES error:NULL]] ? "true" : "false");
    }
    return 0;
}
