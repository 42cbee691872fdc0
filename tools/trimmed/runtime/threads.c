/* The team: the threads that run steps together with the caller's thread.  Each of them runs the
 * kernel `worker` until the model is destroyed.
 *
 * A thread that waits for the others first spins and then sleeps.  To sleep, the executor
 * (kernels/loops/executor.py) calls functions of the system, whose addresses are in its words:
 * POSIX's lock(mutex) and unlock(mutex), wait(condition, mutex, forever, no flags) and
 * wake(condition); while it spins, give(nothing). */

#if MODEL_THREADS > 1 && !defined(EDGEGRAD_FREESTANDING)

#ifdef _WIN32
typedef HANDLE thread;
typedef SRWLOCK mutex;
typedef CONDITION_VARIABLE condition;
#else
typedef pthread_t thread;
typedef pthread_mutex_t mutex;
typedef pthread_cond_t condition;
#endif

struct member {
    int64_t *words;
    int64_t tid;
    kernel worker;
};

struct team {
    int started;
    mutex lock;
    condition change;
    thread threads[MODEL_THREADS - 1];
    struct member members[MODEL_THREADS - 1];
};

static void team_words(struct team *t, int64_t *words)
{
    long cores;
#ifdef _WIN32
    SYSTEM_INFO info;
    InitializeSRWLock(&t->lock);
    InitializeConditionVariable(&t->change);
    words[CONTEXT_LOCK] = (int64_t)(uintptr_t)AcquireSRWLockExclusive;
    words[CONTEXT_UNLOCK] = (int64_t)(uintptr_t)ReleaseSRWLockExclusive;
    words[CONTEXT_WAIT] = (int64_t)(uintptr_t)SleepConditionVariableSRW;
    words[CONTEXT_WAKE] = (int64_t)(uintptr_t)WakeAllConditionVariable;
    words[CONTEXT_GIVE] = (int64_t)(uintptr_t)SwitchToThread;
    GetSystemInfo(&info);
    cores = (long)info.dwNumberOfProcessors;
#else
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->change, NULL);
    words[CONTEXT_LOCK] = (int64_t)(uintptr_t)pthread_mutex_lock;
    words[CONTEXT_UNLOCK] = (int64_t)(uintptr_t)pthread_mutex_unlock;
    words[CONTEXT_WAIT] = (int64_t)(uintptr_t)pthread_cond_wait;
    words[CONTEXT_WAKE] = (int64_t)(uintptr_t)pthread_cond_broadcast;
    words[CONTEXT_GIVE] = (int64_t)(uintptr_t)sched_yield;
    cores = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    words[CONTEXT_MUTEX] = (int64_t)(uintptr_t)&t->lock;
    words[CONTEXT_CONDITION] = (int64_t)(uintptr_t)&t->change;
    words[CONTEXT_SPINS] = MODEL_THREADS <= cores ? SPINS : 1;
}

#ifdef _WIN32
static DWORD WINAPI live(void *argument)
#else
static void *live(void *argument)
#endif
{
    struct member *me = argument;
    me->worker(me->words, me->tid, MODEL_THREADS);
    return 0;
}

static void stop_team(struct team *t, int64_t *words)
{
    __atomic_store_n(&words[CONTEXT_PHASE], STOP, __ATOMIC_SEQ_CST); /* all wake and return */
#ifdef _WIN32
    AcquireSRWLockExclusive(&t->lock);
    WakeAllConditionVariable(&t->change);
    ReleaseSRWLockExclusive(&t->lock);
#else
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->change);
    pthread_mutex_unlock(&t->lock);
#endif
    while (t->started) {
        t->started--;
#ifdef _WIN32
        WaitForSingleObject(t->threads[t->started], INFINITE);
        CloseHandle(t->threads[t->started]);
#else
        pthread_join(t->threads[t->started], NULL);
#endif
    }
#ifndef _WIN32
    pthread_cond_destroy(&t->change);
    pthread_mutex_destroy(&t->lock);
#endif
}

static int start_team(struct team *t, int64_t *words, kernel worker)
{
    for (int i = 0; i < MODEL_THREADS - 1; i++) {
        t->members[i].words = words;
        t->members[i].tid = i + 1;
        t->members[i].worker = worker;
#ifdef _WIN32
        t->threads[i] = CreateThread(NULL, 0, live, &t->members[i], 0, NULL);
        int made = t->threads[i] != NULL;
#else
        int made = !pthread_create(&t->threads[i], NULL, live, &t->members[i]);
#endif
        if (!made) {
            stop_team(t, words);
            return MODEL_NO_MEMORY;
        }
        t->started++;
    }
    return MODEL_OK;
}

#elif MODEL_THREADS > 1 && defined(__wasm_atomics__)

/* The caller's threads have instances of the module with one memory.  A browser lets only its
 * workers sleep, so the caller, whose stack is the module's own, always spins. */

extern char __heap_base; /* stacks of workers are above it, the caller's is below */

struct team {
    int32_t locked;  /* 1 while a thread has the lock */
    int32_t changes; /* how often sleepers were woken */
};

/* The first worker that has trapped in the memory of this module; 0: none.  A step waits for its
 * share, which nobody completes, so who waits traps, too. */
static int32_t ended;

/* Note that worker `tid` has trapped; return the first that has.  0 only asks. */
__attribute__((export_name("ended"))) int32_t model_ended(int32_t tid)
{
    int32_t none = 0;
    if (tid)
        __atomic_compare_exchange_n(&ended, &none, tid, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&ended, __ATOMIC_SEQ_CST);
}

static void check_workers(void)
{
    if (__atomic_load_n(&ended, __ATOMIC_SEQ_CST))
        __builtin_trap();
}

static int64_t lock(int32_t *locked)
{
    while (__atomic_exchange_n(locked, 1, __ATOMIC_SEQ_CST)) /* for a few instructions */
        ;
    return 0;
}

static int64_t unlock(int32_t *locked)
{
    __atomic_store_n(locked, 0, __ATOMIC_SEQ_CST);
    return 0;
}

static int64_t wait(int32_t *changes, int32_t *locked, int64_t forever, int64_t flags)
{
    int32_t seen = __atomic_load_n(changes, __ATOMIC_SEQ_CST);
    (void)flags;
    unlock(locked);
    if ((char *)__builtin_frame_address(0) > &__heap_base)
        __builtin_wasm_memory_atomic_wait32(changes, seen, forever);
    else
        check_workers();
    return lock(locked);
}

static int64_t wake(int32_t *changes)
{
    __atomic_fetch_add(changes, 1, __ATOMIC_SEQ_CST);
    __builtin_wasm_memory_atomic_notify(changes, (uint32_t)-1);
    return 0;
}

static int64_t give(int64_t nothing)
{
    check_workers();
    return nothing;
}

static void team_words(struct team *t, int64_t *words)
{
    words[CONTEXT_LOCK] = (int64_t)(uintptr_t)lock;
    words[CONTEXT_UNLOCK] = (int64_t)(uintptr_t)unlock;
    words[CONTEXT_WAIT] = (int64_t)(uintptr_t)wait;
    words[CONTEXT_WAKE] = (int64_t)(uintptr_t)wake;
    words[CONTEXT_GIVE] = (int64_t)(uintptr_t)give;
    words[CONTEXT_MUTEX] = (int64_t)(uintptr_t)&t->locked;
    words[CONTEXT_CONDITION] = (int64_t)(uintptr_t)&t->changes;
    words[CONTEXT_SPINS] = SPINS;
}

static int start_team(struct team *t, int64_t *words, kernel worker)
{
    (void)t;
    (void)words;
    (void)worker;
    return MODEL_OK; /* the caller starts its threads */
}

static void stop_team(struct team *t, int64_t *words)
{
    __atomic_store_n(&words[CONTEXT_PHASE], STOP, __ATOMIC_SEQ_CST); /* all threads return */
    lock(&t->locked);
    wake(&t->changes);
    unlock(&t->locked);
}

#elif !IN_PLACE

struct team {
    int unused;
};

#if MODEL_THREADS > 1
static int64_t keep(int64_t nothing)
{
    return nothing;
}
#endif

static void team_words(struct team *t, int64_t *words)
{
    (void)t;
    words[CONTEXT_SPINS] = INT64_MAX; /* the caller's threads never sleep */
#if MODEL_THREADS > 1
    words[CONTEXT_GIVE] = (int64_t)(uintptr_t)keep; /* nor give their cores away */
#endif
}

static int start_team(struct team *t, int64_t *words, kernel worker)
{
    (void)t;
    (void)words;
    (void)worker;
    return MODEL_OK;
}

static void stop_team(struct team *t, int64_t *words)
{
    (void)t;
#if MODEL_THREADS > 1
    __atomic_store_n(&words[CONTEXT_PHASE], STOP, __ATOMIC_SEQ_CST); /* all threads return */
#else
    (void)words;
#endif
}

#endif
