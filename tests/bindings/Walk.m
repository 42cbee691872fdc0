// Every method with values that nobody should pass: walk CHECKPOINT CALLS ROUNDS.
#import "MnistModel.h"

#include "walk.h"

#include <pthread.h>
#include <unistd.h>

static NSString *takeString(const char *word)
{
    if (!strcmp(word, "null"))
        return nil;
    NSUInteger length = strlen(word + 1) / 2;
    return [[[NSString alloc] initWithBytes:take_text(word)
                                     length:length
                                   encoding:NSUTF8StringEncoding] autorelease];
}

static NSData *takeData(const char *word)
{
    void *bytes = take_bytes(word);
    return bytes ? [NSData dataWithBytes:bytes length:count_bytes(word)] : nil;
}

static NSMutableData *takeZeros(const char *word, NSUInteger each)
{
    return strcmp(word, "null") ? [NSMutableData dataWithLength:take_size(word) * each] : nil;
}

static NSData *takeNumbers(const char *word)
{
    size_t bytes;
    void *numbers = take_numbers(word, &bytes);
    return numbers ? [NSData dataWithBytes:numbers length:bytes] : nil;
}

static NSArray<NSData *> *takeInputs(const char *word)
{
    if (!strcmp(word, "null"))
        return nil;
    NSMutableArray *made = [NSMutableArray array];
    if (!strcmp(word, "none"))
        return made;
    for (NSString *each in [[NSString stringWithUTF8String:word] componentsSeparatedByString:@","]) {
        NSData *numbers = takeNumbers(each.UTF8String);
        [made addObject:numbers ? (id)numbers : [NSNull null]];
    }
    return made;
}

static BOOL choose(const char *name, MnistModel *m, char *const *w, NSError **error)
{
/*@rows@*/
    return NO;
}

static void make(const struct row *row, MnistModel *m)
{
    NSError *error = nil;
    @autoreleasepool {
        tell_done();
        if (!choose(row->name, m, row->words, &error))
            abort();
        if (error)
            tell_error((int)error.code, error.localizedDescription.UTF8String);
    }
    drop_blocks();
}

enum { RACES = 100 };
static MnistModel *raced;

// Until the model has ended, which another thread closes meanwhile, make the calls of a training.
static void *walkToEnd(void *argument)
{
    int ended = 0;
    for (unsigned turn = *(unsigned *)argument; !ended; turn++) {
        @autoreleasepool {
            NSError *error = nil;
            NSUInteger sizes[2] = {[raced inputInfo:MnistPhaseTrain index:0].bytes,
                                   [raced inputInfo:MnistPhaseTrain index:1].bytes};
            NSArray *inputs = @[ [NSMutableData dataWithLength:sizes[0]],
                                 [NSMutableData dataWithLength:sizes[1]] ];
            switch (turn % 6) {
            case 0: [raced trainStep:inputs error:&error]; break;
            case 1: [raced optimizerStep:&error]; break;
            case 2: [raced checkpoint:YES error:&error]; break;
            case 3: [raced exportModel:@"raced.onnx" error:&error]; break;
            case 4: [raced save:@"raced" includeOptimizerState:YES error:&error]; break;
            default: [raced parameters:YES error:&error]; break;
            }
            ended = [error.localizedDescription isEqual:@"the model was closed"];
        }
    }
    return NULL;
}

static void race(NSString *path, unsigned wait)
{
    pthread_t others[2];
    unsigned starts[2] = {0, 3};
    raced = [[MnistModel create:path error:NULL] retain];
    for (int k = 0; k < 2; k++)
        pthread_create(&others[k], NULL, walkToEnd, &starts[k]);
    usleep(wait);
    [raced close];
    [raced close];
    for (int k = 0; k < 2; k++)
        pthread_join(others[k], NULL);
    [raced release];
}

static MnistModel *find(const struct row *row, MnistModel *live, MnistModel *bare, MnistModel *ended)
{
    return row->state[0] == 'l' ? live : row->state[0] == 'b' ? bare : ended;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    @autoreleasepool {
        NSString *path = [NSString stringWithUTF8String:argv[1]];
        MnistModel *live = [MnistModel create:path error:NULL];
        MnistModel *bare = [MnistModel createWithoutValues:NULL];
        MnistModel *ended = [MnistModel create:path error:NULL];
        [ended close];
        [ended close];
        int count = read_rows(argv[2], rows);
        for (int i = 0; i < count; i++) {
            @autoreleasepool {
                NSData *before = [live checkpoint:YES error:NULL];
                make(&rows[i], find(&rows[i], live, bare, ended));
                BOOL isSame = [before isEqual:[live checkpoint:YES error:NULL]];
                printf("%d %s%s\n", i, said, said[0] == 'o' || isSame ? "" : " changed");
            }
        }
        for (int turn = 0; turn < RACES; turn++) {
            @autoreleasepool {
                race(path, (unsigned)turn * 30);
            }
        }
        printf("raced %d\n", 2 * RACES);
        long first = 0;
        int rounds = atoi(argv[3]);
        for (int turn = 0; turn < rounds; turn++) {
            for (int i = 0; i < count; i++)
                make(&rows[i], find(&rows[i], live, bare, ended));
            first = turn == rounds / 2 ? read_resident() : first;
        }
        printf("grown %ld\n", (read_resident() - first) >> 20);
    }
    return 0;
}
