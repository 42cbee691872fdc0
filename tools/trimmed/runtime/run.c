/* Running a plan, and the faults that its kernels report. */

#if IN_PLACE
/* Run a plan as the executor does, from where the library has its steps: the steps of a group one
 * after another on each tile.  Nothing after a barrier depends on bad data. */
static void walk(const model *m, const struct plan *plan, const int64_t *status)
{
    const struct level *level = level_of(m);
    struct steps s = find_steps(find_block(level, m->memory));
    int64_t call[CALL_WORDS];
    call[CALL_BASE] = (int64_t)(uintptr_t)at(m, m->d.param_at);
    call[CALL_THREAD] = 0;
    struct place here = {plan->code, NULL, 0};
    for (int64_t left = plan->steps, steps; left; left -= steps) {
        enter_run(&s, &here);
        const uint16_t *first = here.next, *next = first;
        int64_t tiles = 1;
        steps = 1;
        if ((*first & IS_BARRIER) && status[STATUS_KIND])
            break;
        if (*first & IS_GROUP) {
            tiles = s.tilings[first[1]] >> 1;
            steps = first[2];
        }
        for (int64_t tile = 0; tile < tiles; tile++) {
            next = first;
            for (int64_t i = 0; i < steps; i++) {
                unsigned head = *next++;
                int64_t part = 0, parts = 1;
                if (head & IS_TILED) {
                    uint32_t tiling = s.tilings[*next++];
                    if (tiling & 1) {
                        part = tile;
                        parts = tiling >> 1;
                    }
                }
                next += (head & IS_GROUP) != 0;
                call[CALL_RECORD] = (int64_t)(uintptr_t)next;
                call[CALL_TILE] = tile;
                kernel_at(level->kernels, head & KIND)(call, part, parts);
                next += s.sizes[head & KIND];
            }
        }
        here.next = next;
        leave_run(&here, steps);
    }
}
#endif

static int run(model *m, const struct plan *plan)
{
    int64_t none[STATUS_WORDS]; /* for a plan that reports nothing */
    int64_t *status = plan->fault ? (int64_t *)(void *)at(m, plan->fault) : none;
    status[STATUS_KIND] = 0;
    if (plan->noise) {
        int64_t *noise = (int64_t *)(void *)at(m, plan->noise);
        noise[RANDOM_SEED] = m->seed;
        noise[RANDOM_STEP] = m->draws;
    }
#if IN_PLACE
    walk(m, plan, status);
#else
    m->words[CONTEXT_TABLE] = (int64_t)(uintptr_t)plan->table;
    m->words[CONTEXT_STEPS] = plan->steps;
    m->words[CONTEXT_STATUS] = (int64_t)(uintptr_t)status;
    const struct level *level = level_of(m);
    kernel_at(level->kernels, level->runner)(m->words, 0, plan->runners);
#endif
    int64_t kind = status[STATUS_KIND], limit = status[STATUS_LIMIT];
    if (!kind) {
        m->draws += plan->noise != 0;
        return MODEL_OK;
    }
    return fail(m, MODEL_BAD_LABEL, "%s %d at position %d is outside [%d, %d)",
                kind == LABEL ? "label" : kind == INDEX ? "index" : "length",
                status[STATUS_VALUE], status[STATUS_POSITION], kind == INDEX ? -limit : (int64_t)0,
                limit);
}
