/* A QEMU plugin that counts the instructions a program executes under user-mode emulation.
 *
 *     cc -shared -fPIC instructions.c -o count.so
 *     qemu-aarch64 -plugin count.so -d plugin PROGRAM
 *     qemu-aarch64 -plugin count.so,blocks=on -d plugin PROGRAM
 *
 * With an argument it also tells how often each block was executed: its address, the number of its
 * instructions, and the times.  A block that was translated again has several lines.
 *
 * Declares what it uses of QEMU's plugin interface, version 1, which has no header package.
 * Exact for programs of one thread. */

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define PUBLIC __attribute__((visibility("default")))

typedef uint64_t id;
struct block; /* struct qemu_plugin_tb: instructions translated together */

extern void qemu_plugin_register_vcpu_tb_trans_cb(id, void (*)(id, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct block *, int op, void *, uint64_t);
extern void qemu_plugin_register_atexit_cb(id, void (*)(id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern uint64_t qemu_plugin_tb_vaddr(const struct block *);
extern void qemu_plugin_outs(const char *);

enum { ADD_U64 }; /* QEMU_PLUGIN_INLINE_ADD_U64 */

PUBLIC int qemu_plugin_version = 1;
static int tells_blocks;

struct record {
    struct record *next;
    uint64_t address, instructions, times;
};
static struct record *records;

static void translated(id me, struct block *block)
{
    struct record *r = malloc(sizeof *r);

    (void)me;
    if (!r)
        abort();
    *r = (struct record){records, qemu_plugin_tb_vaddr(block), qemu_plugin_tb_n_insns(block), 0};
    records = r;
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &r->times, 1);
}

static void ended(id me, void *unused)
{
    char line[96];
    uint64_t executed = 0;

    (void)me, (void)unused;
    for (const struct record *r = records; r; r = r->next) {
        executed += r->instructions * r->times;
        if (tells_blocks && r->times) {
            snprintf(line, sizeof line, "block %" PRIx64 " %" PRIu64 " %" PRIu64 "\n", r->address,
                     r->instructions, r->times);
            qemu_plugin_outs(line);
        }
    }
    snprintf(line, sizeof line, "instructions %" PRIu64 "\n", executed);
    qemu_plugin_outs(line);
}

PUBLIC int qemu_plugin_install(id me, const void *info, int argc, char **argv)
{
    (void)info, (void)argv;
    tells_blocks = argc > 0;
    qemu_plugin_register_vcpu_tb_trans_cb(me, translated);
    qemu_plugin_register_atexit_cb(me, ended, NULL);
    return 0;
}
