//! A runtime without a configured number of workers has one for each CPU it may use.
//!
//! The package `tests/cgroups` tests the effect of control groups.

use indent::runtime::Builder;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const THIS_THREAD: Pid = Pid::from_raw(0);

/// Returns the number of workers of a runtime on a thread limited to its first `n` CPUs.
fn workers_on(n: usize) -> usize {
    let start = || {
        let all = sched_getaffinity(THIS_THREAD).unwrap();
        let mut some = CpuSet::new();
        let mine = (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu).unwrap());
        mine.take(n).for_each(|cpu| some.set(cpu).unwrap());
        sched_setaffinity(THIS_THREAD, &some).unwrap();
        let rt = Builder::new().build().unwrap();
        rt.block_on(|| indent::spawn(|| ()).join().unwrap());
        rt.metrics().workers.len()
    };
    std::thread::scope(|scope| scope.spawn(start).join().unwrap())
}

#[test]
fn a_mask_of_one_cpu_starts_one_worker() {
    assert_eq!(workers_on(1), 1);
}

#[test]
fn a_mask_of_all_cpus_starts_as_many_workers_as_the_machine_allows() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let workers = workers_on(CpuSet::count());
    // The standard library rounds down if a control group grants a part of a CPU.
    assert!(
        workers == cpus || workers == cpus + 1,
        "{workers} workers, {cpus} CPUs"
    );
}

#[test]
fn a_set_number_of_workers_needs_no_cpus() {
    let rt = Builder::new().workers(7).build().unwrap();
    assert_eq!(rt.metrics().workers.len(), 7);
}
