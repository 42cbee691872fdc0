/* A program for a board without a system: it trains a few steps from the checkpoint in its flash
 * and prints the bits of each loss by semihosting.  The memory of the model is a static array.
 * With a library that has a decoder alone, it continues a text, and prints the bits of the first
 * score of each token.  With TRAINS_ELSEWHERE, the training is another file's.
 *
 * On RISC-V, qemu's user mode is the board: it loads the data, gives a stack, and answers to
 * semihosting, too. */

#define EDGEGRAD_FREESTANDING
#include "mnist.h"

#include "firmware.h"
#ifndef TRAINS_ELSEWHERE
#include "checkpoint.h" /* static const unsigned char checkpoint[] */

enum { STEPS = 4 };
static _Alignas(64) unsigned char memory[MNIST_MEMORY_BYTES];
#endif
extern unsigned char stack_top[], data_from[], data_begin[], data_end[], bss_begin[], bss_end[];

static void semihost(int operation, const void *argument)
{
#ifdef __riscv
    register int a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = argument;
    __asm__ volatile(".balign 16\n\t" /* the three lie in one page */
                     ".option push\n\t"
                     ".option norvc\n\t"
                     "slli zero, zero, 0x1f\n\t"
                     "ebreak\n\t"
                     "srai zero, zero, 7\n\t"
                     ".option pop" : "+r"(a0) : "r"(a1) : "memory");
#else
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
#endif
}

void say(const char *text)
{
    semihost(4, text); /* SYS_WRITE0 */
}

/* STACK_BYTES: how many bytes of the stack the calls of a model may take. */
#define PAINT 0xA5A5A5A5u

/* Words of the stack that nothing has used yet hold PAINT. */
static uint32_t *find_end_of_data(void)
{
    return (uint32_t *)(((uintptr_t)bss_end + 7) & ~(uintptr_t)7);
}

void stop(int failed)
{
#ifndef __riscv
    const uint32_t *used = find_end_of_data();
    while (*used == PAINT)
        used++;
    if (!failed && stack_top - (const unsigned char *)used > STACK_BYTES) {
        say("the stack took more than its bytes\n");
        failed = 1;
    }
#endif
    semihost(0x18, (const void *)(failed ? 0x20023 : 0x20026)); /* SYS_EXIT: error, or none */
    for (;;)
        ;
}

void say_bits(float value)
{
    union {
        float value;
        uint32_t bits;
    } number = {value};
    char text[10];
    for (int i = 0; i < 8; i++)
        text[i] = "0123456789abcdef"[number.bits >> (28 - 4 * i) & 15];
    text[8] = '\n';
    text[9] = 0;
    say(text);
}

#ifndef TRAINS_ELSEWHERE
/* Inputs that a test makes up in the same way: floats from 0 to 6/7, whole numbers 0 and 1. */
static void fill(const mnist_tensor *t, void *to)
{
    float *numbers = to;
    int64_t *labels = to;
    if (t->dtype == MNIST_F32)
        for (uint32_t i = 0; i < t->bytes / sizeof *numbers; i++)
            numbers[i] = (float)(i % 7) / 7;
    else
        for (uint32_t i = 0; i < t->bytes / sizeof *labels; i++)
            labels[i] = i % 2;
}

#if MNIST_DECODES
static void append(mnist *m, const int32_t *tokens, size_t count)
{
    if (mnist_append(m, tokens, count)) {
        say(mnist_message(m));
        stop(1);
    }
    say_bits(*(const float *)mnist_scores(m));
}

void train(void)
{
    static const int32_t prompt[] = {5, 7, 9, 11, 13};
    char why[MNIST_MESSAGE_BYTES];
    mnist *m;
    (void)fill;
    if (mnist_create_in(&m, memory, sizeof memory, NULL, sizeof checkpoint - 1, why)) {
        say(why);
        stop(1);
    }
    append(m, prompt, 5);
    for (int32_t token = 3; token < 13; token++)
        append(m, &token, 1);
    say("done\n");
    stop(0);
}
#else
void train(void)
{
    char why[MNIST_MESSAGE_BYTES];
    mnist *m;
    if (mnist_create_in(&m, memory, sizeof memory, checkpoint, sizeof checkpoint, why)) {
        say(why);
        stop(1);
    }
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < mnist_input_count(m, MNIST_TRAIN); i++)
            fill(mnist_input_info(m, MNIST_TRAIN, i), mnist_input(m, MNIST_TRAIN, i));
        if (mnist_train_step(m, NULL, NULL) || mnist_optimizer_step(m)) {
            say(mnist_message(m));
            stop(1);
        }
        mnist_lazy_reset_grad(m);
        say_bits(*(const float *)mnist_output(m, MNIST_TRAIN, 0));
    }
    say("done\n");
    stop(0);
}
#endif
#endif

__attribute__((used)) void _start(void)
{
#ifndef __riscv
    *(volatile uint32_t *)0xE000ED88 |= 0xF << 20; /* the FPU is on */
    __asm__ volatile("dsb\n\tisb");
#endif
    for (unsigned char *to = data_begin, *from = data_from; to < data_end;)
        *to++ = *from++;
    for (unsigned char *to = bss_begin; to < bss_end;)
        *(volatile unsigned char *)to++ = 0;
#ifndef __riscv
    volatile uint32_t here;
    for (volatile uint32_t *to = find_end_of_data(); to < &here - 64;)
        *to++ = PAINT;
#endif
    train();
}

#ifndef __riscv
static void fault(void)
{
    say("fault\n");
    stop(1);
}

__attribute__((section(".vectors"), used)) const void *const vectors[] = {
    stack_top, _start, fault, fault, fault, fault, fault, 0, 0, 0, 0, fault, fault, 0, fault, fault,
};
#endif
