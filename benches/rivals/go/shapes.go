// Program shapes runs the benchmark shapes on Go's goroutines.
//
// It mirrors ../src/lib.rs: called as `shapes SHAPE [OPS]`, it does one round to warm up and one for
// the clock, and prints `SHAPE NS_PER_OP`.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// workers is how many goroutines run at the same time, in every shape.
	workers = 2
	// yieldingGoroutines is how many goroutines yield at the same time in the shape yield.
	yieldingGoroutines = 1000
	// shortGap is how long the waking thread spins before each round of the shape wake: just long
	// enough that the goroutine, which answers before it waits, waits again.
	shortGap = 2 * time.Microsecond
	// idleGap is how long the waking thread sleeps before each round of the shape wake_idle.
	idleGap = 100 * time.Microsecond
)

// spawnJoin starts count goroutines that each leave their index in a slice, and waits for all. One
// Add for all is the fastest of the usual ways; an Add each, or WaitGroup.Go, costs a little more.
func spawnJoin(count int) {
	results := make([]int, count)
	var group sync.WaitGroup
	group.Add(count)
	for index := range count {
		go func() {
			defer group.Done()
			results[index] = index
		}()
	}
	group.Wait()
	sum := 0
	for _, result := range results {
		sum += result
	}
	if sum != count*(count-1)/2 {
		panic("a goroutine was lost")
	}
}

// yields starts goroutines that each yield the given number of times, and waits for all.
func yields(goroutines, each int) {
	var group sync.WaitGroup
	group.Add(goroutines)
	for range goroutines {
		go func() {
			defer group.Done()
			for range each {
				runtime.Gosched()
			}
		}()
	}
	group.Wait()
}

// link is one link of a chain of goroutines.
func link(left int, done chan<- struct{}) {
	if left == 0 {
		done <- struct{}{}
	} else {
		go link(left-1, done)
	}
}

// chain starts a goroutine that starts the next one, and so on for count in all, and waits for the
// last one to signal.
func chain(count int) {
	done := make(chan struct{}, 1)
	link(count, done)
	<-done
}

// padded is a counter that has its cache line (and the one prefetched with it) for itself.
type padded struct {
	_     [128]byte
	value atomic.Int64
	_     [120]byte
}

// spinShort lets shortGap pass.
func spinShort() {
	for start := time.Now(); time.Since(start) < shortGap; {
	}
}

// sleepIdle lets idleGap pass. It sleeps in the kernel: time.Sleep would need another thread to wake
// this one, which would then be up.
func sleepIdle() {
	interval := syscall.NsecToTimespec(idleGap.Nanoseconds())
	syscall.Nanosleep(&interval, nil)
}

// wake has a goroutine wait on a channel, to which another one, with a thread of its own, sends in
// each round after a gap, and then spins until the first has answered. It returns the sum of the
// times from wake-up to answer.
func wake(rounds int, gap func()) time.Duration {
	wakes := make(chan struct{}, 1)
	taken := make(chan time.Duration, 1)
	answered := new(padded)
	go func() {
		// Not unlocked: the thread ends with its goroutine, as the plain threads of the others do.
		runtime.LockOSThread()
		var sum time.Duration
		for round := 1; round <= rounds; round++ {
			gap()
			start := time.Now()
			wakes <- struct{}{}
			for answered.value.Load() < int64(round) {
			}
			sum += time.Since(start)
		}
		taken <- sum
	}()
	for round := 1; round <= rounds; round++ {
		<-wakes
		answered.value.Store(int64(round))
	}
	return <-taken
}

// timed returns how long a call takes.
func timed(call func()) time.Duration {
	start := time.Now()
	call()
	return time.Since(start)
}

// round is one round of about ops operations of a shape; it returns how many it made and how long
// they took.
type round func(ops int) (int, time.Duration)

// shape is a round of a shape, and its number of operations if the command line does not say.
type shape struct {
	defaultOps int
	round      round
}

// shapes are all shapes, by name.
var shapes = map[string]shape{
	"spawn_join": {1_000_000, func(ops int) (int, time.Duration) {
		return ops, timed(func() { spawnJoin(ops) })
	}},
	"yield": {1_000_000, func(ops int) (int, time.Duration) {
		each := (ops + yieldingGoroutines - 1) / yieldingGoroutines
		return yieldingGoroutines * each, timed(func() { yields(yieldingGoroutines, each) })
	}},
	"chain": {1_000_000, func(ops int) (int, time.Duration) {
		return ops, timed(func() { chain(ops) })
	}},
	"wake": {100_000, func(ops int) (int, time.Duration) {
		return ops, wake(ops, spinShort)
	}},
	"wake_idle": {5_000, func(ops int) (int, time.Duration) {
		return ops, wake(ops, sleepIdle)
	}},
}

// parse reads `SHAPE [OPS]`.
func parse(args []string) (shape, int, bool) {
	if len(args) < 1 || len(args) > 2 {
		return shape{}, 0, false
	}
	chosen, known := shapes[args[0]]
	ops := chosen.defaultOps
	if len(args) == 2 {
		var err error
		ops, err = strconv.Atoi(args[1])
		known = known && err == nil && ops > 0
	}
	return chosen, ops, known
}

func main() {
	chosen, ops, ok := parse(os.Args[1:])
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: shapes spawn_join|yield|chain|wake|wake_idle [OPS]")
		os.Exit(2)
	}
	runtime.GOMAXPROCS(workers)
	chosen.round(ops)
	made, taken := chosen.round(ops)
	fmt.Printf("%s %.1f\n", os.Args[1], float64(taken.Nanoseconds())/float64(made))
}
