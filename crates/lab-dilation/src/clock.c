// SPDX-License-Identifier: GPL-2.0-only
/*
 * A clock that runs N times slower, for one process: preloaded into the lab's QEMU.
 *
 * Every clock that QEMU reads is divided, and every time that it waits for is multiplied, so that the machine inside
 * sees CPUs that are N times faster and is otherwise consistent (time dilation: Gupta et al., NSDI 2006). The clocks of
 * CPU time are left alone. What is not covered: waits by futex(2) that a library makes by itself, and io_uring's
 * timeouts.
 *
 * On x86_64 QEMU reads the CPU's time stamp counter by an instruction, for a machine that has one itself (`counted`).
 * The kernel is asked to let it trap (PR_SET_TSC), and the trap answers with the machine's time in ns: a counter of
 * 1 GHz. The trap outlives an exec while its handler does not, so the process must not execute another program; QEMU
 * executes none.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "clock.h"

#define SEC_NS	 1000000000LL
/* A wait is cut into pieces of so long, so that it follows a change of the rate. */
#define PIECE_NS (20 * 1000000LL)

/* NULL: not told to, the clocks are the computer's. */
static const volatile struct entrain_lab_clock *control;

#define REAL(name)                                                                                                     \
	({                                                                                                             \
		static __typeof__(&name) real_;                                                                        \
		if (!real_)                                                                                            \
			real_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                            \
		real_;                                                                                                 \
	})

/*
 * The C library's way is the vDSO's, which reads the counter. Where that traps the system call itself is left, ten
 * times as long; QEMU looks at the clock with its one lock held, so the other emulated CPUs wait for it.
 */
static int64_t computer_ns(clockid_t clock)
{
	struct timespec now;

	if (control && control->counted)
		syscall(SYS_clock_gettime, clock, &now);
	else
		REAL(clock_gettime)(clock, &now);
	return now.tv_sec * SEC_NS + now.tv_nsec;
}

struct rule {
	int64_t computer_ns, machine_ns, realtime_ns;
	uint64_t rate;
};

static struct rule rule(void)
{
	struct rule r;
	uint64_t seq;

	do {
		while ((seq = control->seq) & 1)
			;
		atomic_thread_fence(memory_order_acquire);
		r = (struct rule){control->computer_ns, control->machine_ns, control->realtime_ns, control->rate};
		atomic_thread_fence(memory_order_acquire);
	} while (control->seq != seq);
	return r;
}

static int64_t machine_ns(void)
{
	struct rule r = rule();
	__int128 passed = computer_ns(CLOCK_MONOTONIC) - r.computer_ns;

	return r.machine_ns + (int64_t)((passed * (__int128)r.rate) >> 32);
}

/* The computer's length of a span of the machine's, rounded up so that nobody wakes before his time. */
static int64_t to_computer(int64_t span)
{
	struct rule r = rule();
	__int128 wide = ((__int128)span << 32) / (__int128)r.rate + 1;

	return wide > INT64_MAX ? INT64_MAX : (int64_t)wide;
}

static struct timespec to_timespec(int64_t ns)
{
	return (struct timespec){.tv_sec = ns / SEC_NS, .tv_nsec = ns % SEC_NS};
}

static int64_t from_timespec(const struct timespec *t)
{
	if (t->tv_sec > INT64_MAX / SEC_NS - 1)
		return INT64_MAX;
	return t->tv_sec * SEC_NS + t->tv_nsec;
}

static int64_t later(int64_t now, int64_t span)
{
	return span > INT64_MAX - now ? INT64_MAX : now + span;
}

/* Clocks. */

static bool is_dilated(clockid_t clock)
{
	switch (clock) {
	case CLOCK_REALTIME:
	case CLOCK_REALTIME_COARSE:
	case CLOCK_MONOTONIC:
	case CLOCK_MONOTONIC_RAW:
	case CLOCK_MONOTONIC_COARSE:
	case CLOCK_BOOTTIME:
	case CLOCK_TAI:
		return control != NULL;
	default:
		return false;
	}
}

static int64_t machine_clock(clockid_t clock)
{
	bool real = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;

	return machine_ns() + (real ? control->realtime_ns : 0);
}

int clock_gettime(clockid_t clock, struct timespec *to)
{
	if (!is_dilated(clock))
		return syscall(SYS_clock_gettime, clock, to);
	*to = to_timespec(machine_clock(clock));
	return 0;
}

int gettimeofday(struct timeval *restrict to, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	*to = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
	return 0;
}

time_t time(time_t *to)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (to)
		*to = now.tv_sec;
	return now.tv_sec;
}

/* Waits for files. `until` is the machine's time; INT64_MAX: for ever. */

static int64_t piece(int64_t until)
{
	int64_t left = until - machine_ns(), wall;

	if (left <= 0)
		return 0;
	wall = to_computer(left);
	return wall < PIECE_NS ? wall : PIECE_NS;
}

static int64_t until_timespec(const struct timespec *timeout)
{
	return timeout ? later(machine_ns(), from_timespec(timeout)) : INT64_MAX;
}

static int64_t until_ms(int timeout)
{
	return timeout < 0 ? INT64_MAX : later(machine_ns(), timeout * 1000000LL);
}

static int wait_poll(struct pollfd *fds, nfds_t n, int64_t until, const sigset_t *mask)
{
	for (;;) {
		struct timespec span = to_timespec(until == INT64_MAX ? 0 : piece(until));
		int ready = REAL(ppoll)(fds, n, until == INT64_MAX ? NULL : &span, mask);

		if (ready || until == INT64_MAX || machine_ns() >= until)
			return ready;
	}
}

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	if (!control)
		return REAL(ppoll)(fds, n, timeout, mask);
	return wait_poll(fds, n, until_timespec(timeout), mask);
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	if (!control)
		return REAL(poll)(fds, n, timeout);
	return wait_poll(fds, n, until_ms(timeout), NULL);
}

int epoll_pwait2(int epoll, struct epoll_event *events, int n, const struct timespec *timeout, const sigset_t *mask)
{
	int64_t until;

	if (!control)
		return REAL(epoll_pwait2)(epoll, events, n, timeout, mask);
	until = until_timespec(timeout);
	for (;;) {
		struct timespec span = to_timespec(until == INT64_MAX ? 0 : piece(until));
		int ready = REAL(epoll_pwait2)(epoll, events, n, until == INT64_MAX ? NULL : &span, mask);

		if (ready || until == INT64_MAX || machine_ns() >= until)
			return ready;
	}
}

int epoll_pwait(int epoll, struct epoll_event *events, int n, int timeout, const sigset_t *mask)
{
	struct timespec span = to_timespec(timeout < 0 ? 0 : timeout * 1000000LL);

	if (!control)
		return REAL(epoll_pwait)(epoll, events, n, timeout, mask);
	return epoll_pwait2(epoll, events, n, timeout < 0 ? NULL : &span, mask);
}

int epoll_wait(int epoll, struct epoll_event *events, int n, int timeout)
{
	return epoll_pwait(epoll, events, n, timeout, NULL);
}

int select(int n, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	struct timeval span;

	if (control && timeout) {
		int64_t wall = to_computer(timeout->tv_sec * SEC_NS + timeout->tv_usec * 1000LL);

		span = (struct timeval){.tv_sec = wall / SEC_NS, .tv_usec = wall % SEC_NS / 1000};
		timeout = &span;
	}
	return REAL(select)(n, in, out, except, timeout);
}

/* Sleeps. */

static int sleep_until(int64_t until, struct timespec *left)
{
	int64_t wall;

	while ((wall = piece(until)) > 0) {
		struct timespec span = to_timespec(wall);
		int error = syscall(SYS_nanosleep, &span, NULL) ? errno : 0;

		if (error) {
			if (left)
				*left = to_timespec(until > machine_ns() ? until - machine_ns() : 0);
			return error;
		}
	}
	return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *span, struct timespec *left)
{
	int64_t until = from_timespec(span);

	if (!is_dilated(clock))
		return REAL(clock_nanosleep)(clock, flags, span, left);
	if (flags & TIMER_ABSTIME)
		until -= machine_clock(clock) - machine_ns();
	else
		until = later(machine_ns(), until);
	return sleep_until(until, flags & TIMER_ABSTIME ? NULL : left);
}

int nanosleep(const struct timespec *span, struct timespec *left)
{
	int error = clock_nanosleep(CLOCK_MONOTONIC, 0, span, left);

	if (error)
		errno = error;
	return error ? -1 : 0;
}

int usleep(useconds_t usec)
{
	struct timespec span = to_timespec(usec * 1000LL);

	return nanosleep(&span, NULL);
}

/*
 * Locks with a deadline. The computer's deadline is worked out once: a change of the rate moves what was waited for
 * already, which costs idle helper threads of QEMU an early or a late look, nothing more.
 */

/* The condition's clock is hidden in it, but no machine is up for decades: what is greater is a date. */
#define A_DATE (SEC_NS * 1000000000LL)

static struct timespec computer_deadline(const struct timespec *deadline)
{
	int64_t until = from_timespec(deadline), left;

	if (until >= A_DATE)
		until -= control->realtime_ns;
	left = until - machine_ns();
	return to_timespec(later(computer_ns(CLOCK_MONOTONIC), left > 0 ? to_computer(left) : 0));
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
			   const struct timespec *deadline)
{
	struct timespec computers;

	if (!control)
		return REAL(pthread_cond_clockwait)(cond, mutex, clock, deadline);
	computers = computer_deadline(deadline);
	return REAL(pthread_cond_clockwait)(cond, mutex, CLOCK_MONOTONIC, &computers);
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
			   const struct timespec *restrict deadline)
{
	if (!control)
		return REAL(pthread_cond_timedwait)(cond, mutex, deadline);
	return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, deadline);
}

int sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *deadline)
{
	struct timespec computers;

	if (!control)
		return REAL(sem_clockwait)(sem, clock, deadline);
	computers = computer_deadline(deadline);
	return REAL(sem_clockwait)(sem, CLOCK_MONOTONIC, &computers);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict deadline)
{
	if (!control)
		return REAL(sem_timedwait)(sem, deadline);
	return sem_clockwait(sem, CLOCK_REALTIME, deadline);
}

/*
 * Emulated CPUs take QEMU's one lock for each interrupt and each look at a device, for less time than it takes to put a
 * thread to sleep and to wake it, which the machine inside would take for a CPU that stands still: whoever waits for a
 * mutex looks again some times first. Only mutexes that ask for nothing else.
 */
int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
	pthread_mutexattr_t adaptive;
	int error;

	if (attr || pthread_mutexattr_init(&adaptive))
		return REAL(pthread_mutex_init)(mutex, attr);
	pthread_mutexattr_settype(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
	error = REAL(pthread_mutex_init)(mutex, &adaptive);
	pthread_mutexattr_destroy(&adaptive);
	return error;
}

/* The time stamp counter. */

#ifdef __x86_64__
static struct sigaction before;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	const uint8_t *at = (const uint8_t *)regs[REG_RIP];
	int length = 0;

	/* A general protection fault is what a trapped rdtsc makes; other faults carry an address. */
	if (info->si_code == SI_KERNEL) {
		if (at[0] == 0x0f && at[1] == 0x31)
			length = 2;
		else if (at[0] == 0x0f && at[1] == 0x01 && at[2] == 0xf9)
			length = 3;
	}
	if (!length) {
		/* Not ours: whoever had it before, or the default, decides when the instruction runs again. */
		sigaction(SIGSEGV, &before, NULL);
		return;
	}
	uint64_t now = machine_ns();
	regs[REG_RAX] = (uint32_t)now;
	regs[REG_RDX] = now >> 32;
	if (length == 3)
		regs[REG_RCX] = 0;
	regs[REG_RIP] += length;
	(void)signal;
}

static void trap_counter(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};

	sigaction(SIGSEGV, &action, &before);
	/* Threads inherit it. */
	prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
}
#else
static void trap_counter(void)
{
}
#endif

/* Runs before main. ENTRAIN_LAB_CLOCK names the page; a page that cannot be had ends the process: no clock is better
 * than a wrong one. */
__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("ENTRAIN_LAB_CLOCK");
	void *page;
	int fd;

	if (!path)
		return;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*control), PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED || ((const struct entrain_lab_clock *)page)->magic != ENTRAIN_LAB_CLOCK_MAGIC) {
		static const char message[] = "the lab's clock: its page cannot be read\n";

		if (write(STDERR_FILENO, message, sizeof(message) - 1) < 0)
			_exit(126);
		_exit(127);
	}
	close(fd);
	control = page;
	if (control->counted)
		trap_counter();
}
