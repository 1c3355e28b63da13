//! Pause program: keeps a pod's sandbox and its namespaces open, reaps orphaned processes, and
//! exits on a signal.
//!
//! It is process 1 of a pod that shares its process namespace, so orphans become its children and
//! would stay zombies if it did not wait for them. It does nothing else, and there is one per pod:
//! hence no standard library, no allocator, no signal handler, one page of memory.
//!
//! Why the signals are blocked and fetched instead of handled: the kernel drops a signal to a
//! process 1 that has no handler for it, unless that signal is blocked. Blocked signals queue, so
//! one wait covers all three, with no handler that could interrupt anything.

#![no_std]
#![no_main]

use core::arch::{asm, naked_asm};

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!(
    "pause makes its system calls by number, and supports only x86_64 and aarch64 Linux"
);

const SIGINT: u64 = 2;
const SIGTERM: u64 = 15;
const SIGCHLD: u64 = 17;

const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;
const ANY_CHILD: usize = usize::MAX;
const NULL: usize = 0;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 14;
    pub const WAIT4: usize = 61;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const EXIT_GROUP: usize = 231;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const EXIT_GROUP: usize = 94;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const WAIT4: usize = 260;
}

/// Entry point. The stack pointer is aligned as the ABI requires it *before* a call, so a Rust
/// function cannot be the entry itself.
// SAFETY: it is the entry point, so nothing is on the stack that it could break; it calls a
// function that takes nothing and never returns.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn _start() -> ! {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("xor ebp, ebp", "call {run}", "ud2", run = sym run);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x29, xzr", "mov x30, xzr", "b {run}", run = sym run);
}

extern "C" fn run() -> ! {
    let awaited = bit(SIGINT) | bit(SIGTERM) | bit(SIGCHLD);
    let set = &raw const awaited as usize;
    syscall(number::RT_SIGPROCMASK, [SIG_BLOCK, set, NULL, size_of::<u64>()]);
    loop {
        // Before the first wait too: a child may have exited before its signal was blocked.
        reap_children();
        let signal = syscall(number::RT_SIGTIMEDWAIT, [set, NULL, NULL, size_of::<u64>()]);
        if signal == SIGINT as isize || signal == SIGTERM as isize {
            exit(0);
        }
    }
}

/// One signal may stand for many exits, so wait until no zombie is left.
fn reap_children() {
    while syscall(number::WAIT4, [ANY_CHILD, NULL, WNOHANG, NULL]) > 0 {}
}

const fn bit(signal: u64) -> u64 {
    1 << (signal - 1)
}

fn exit(code: usize) -> ! {
    loop {
        syscall(number::EXIT_GROUP, [code, 0, 0, 0]);
    }
}

#[cfg(target_arch = "x86_64")]
fn syscall(number: usize, args: [usize; 4]) -> isize {
    let [a, b, c, d] = args;
    let answer;
    // SAFETY: of the four calls made here only the two signal calls follow a pointer, to a set
    // that lives as long as the process; none writes to memory of ours. The kernel keeps every
    // register but the answer's, rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

#[cfg(target_arch = "aarch64")]
fn syscall(number: usize, args: [usize; 4]) -> isize {
    let [a, b, c, d] = args;
    let answer;
    // SAFETY: as above; here the kernel keeps every register but the answer's.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => answer,
            in("x1") b, in("x2") c, in("x3") d,
            options(nostack),
        );
    }
    answer
}

/// Required by the compiler; nothing above can panic.
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo) -> ! {
    exit(101)
}
