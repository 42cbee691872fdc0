/* A QEMU plugin that counts the instructions a program executes under user-mode emulation.
 *
 *     cc -shared -fPIC instructions.c -o count.so
 *     qemu-aarch64 -plugin count.so -d plugin PROGRAM
 *
 * Declares what it uses of QEMU's plugin interface, version 1, which has no header package.
 * Exact for programs of one thread. */

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#define PUBLIC __attribute__((visibility("default")))

typedef uint64_t id;
struct block; /* struct qemu_plugin_tb: instructions translated together */

extern void qemu_plugin_register_vcpu_tb_trans_cb(id, void (*)(id, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct block *, int op, void *, uint64_t);
extern void qemu_plugin_register_atexit_cb(id, void (*)(id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern void qemu_plugin_outs(const char *);

enum { ADD_U64 }; /* QEMU_PLUGIN_INLINE_ADD_U64 */

PUBLIC int qemu_plugin_version = 1;
static uint64_t executed;

static void translated(id me, struct block *block)
{
    (void)me;
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &executed,
                                             qemu_plugin_tb_n_insns(block));
}

static void ended(id me, void *unused)
{
    char line[64];
    (void)me, (void)unused;
    snprintf(line, sizeof line, "instructions %" PRIu64 "\n", executed);
    qemu_plugin_outs(line);
}

PUBLIC int qemu_plugin_install(id me, const void *info, int argc, char **argv)
{
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(me, translated);
    qemu_plugin_register_atexit_cb(me, ended, NULL);
    return 0;
}
