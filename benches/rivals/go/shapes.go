// Program shapes runs the benchmark shapes on Go's goroutines.
//
// It mirrors ../src/lib.rs: called as `shapes SHAPE [OPS]`, it does one round to warm up and one for
// the clock, and prints `SHAPE NS_PER_OP`, in some shapes followed by further columns, each as
// ` NAME=VALUE`.
package main

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
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
	// pendingTimers is how many timers are pending beside the one that is measured, in the busy half
	// of the shape timer_cancel.
	pendingTimers = 100_000
	// producers is how many goroutines send through one channel in the shape chan_mpsc.
	producers = 4
	// mpscCapacity is the capacity of that channel.
	mpscCapacity = 64
	// lockingGoroutines is how many goroutines lock the mutex of the shape mutex.
	lockingGoroutines = 8
	// children is how many children an inner node of the tree of the shape skynet has, which is also
	// the capacity of its channel.
	children = 10
	// meetingTurns and meetingMoment are how often, and within what time, two goroutines must have
	// answered each other to be known to run at the same time.
	meetingTurns  = 100
	meetingMoment = time.Millisecond
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

// random is a generator of pseudo-random numbers (xorshift), the same for every rival.
type random uint64

// newRandom returns a generator at its beginning.
func newRandom() random {
	return 0x9e3779b97f4a7c15
}

// next returns the next number.
func (r *random) next() uint64 {
	*r ^= *r << 13
	*r ^= *r >> 7
	*r ^= *r << 17
	return uint64(*r)
}

// sleepLength is how long a goroutine of the shape sleepers sleeps: 1 to 1000 ms.
func (r *random) sleepLength() time.Duration {
	return time.Duration(1+r.next()%1000) * time.Millisecond
}

// timerLength is how far ahead a timer that the shape timer_cancel sets and cancels is: 1 to 3600 s.
func (r *random) timerLength() time.Duration {
	return time.Duration(1+r.next()%3600) * time.Second
}

// cpuTime returns the CPU time this process has used, user and system, on all threads.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// sleepers starts a goroutine for each length, which sleeps for it once, and waits for all. It
// returns by how much each woke late.
func sleepers(lengths []time.Duration) []time.Duration {
	late := make([]time.Duration, len(lengths))
	var group sync.WaitGroup
	group.Add(len(lengths))
	for index, length := range lengths {
		go func() {
			defer group.Done()
			start := time.Now()
			time.Sleep(length)
			late[index] = time.Since(start) - length
		}()
	}
	group.Wait()
	if slices.Min(late) < 0 {
		panic("woke early")
	}
	return late
}

// sleepersRound is a round of the shape sleepers.
func sleepersRound(ops int) figures {
	lengths, numbers := make([]time.Duration, ops), newRandom()
	for index := range lengths {
		lengths[index] = numbers.sleepLength()
	}
	start, cpu := time.Now(), cpuTime()
	late := sleepers(lengths)
	wall, cpu := time.Since(start), cpuTime()-cpu
	slices.Sort(late)
	quantile := func(percent int) float64 {
		return float64(late[(len(late)-1)*percent/100]) / 1e3
	}
	return figures{float64(cpu) / float64(ops), fmt.Sprintf(
		" late_p50_us=%.1f late_p99_us=%.1f late_max_us=%.1f wall_ms=%.1f",
		quantile(50), quantile(99), quantile(100), float64(wall)/1e6,
	)}
}

// timerCancel sets and cancels count timers, while as many goroutines as pending says wait for a
// timer ten minutes further ahead. It returns how long that took.
//
// The timers have a function, not a channel: one with a channel is not kept anywhere until somebody
// receives from it.
func timerCancel(count, pending int) time.Duration {
	stop := make(chan struct{})
	var begun atomic.Int64
	var group sync.WaitGroup
	group.Add(pending)
	numbers := newRandom()
	for range pending {
		length := numbers.timerLength() + 10*time.Minute
		go func() {
			defer group.Done()
			timer := time.NewTimer(length)
			defer timer.Stop()
			begun.Add(1)
			select {
			case <-timer.C:
				panic("too early")
			case <-stop:
			}
		}()
	}
	for begun.Load() < int64(pending) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // those that have begun wait by then
	numbers = newRandom()
	taken := timed(func() {
		for range count {
			timer := time.AfterFunc(numbers.timerLength(), func() {})
			if !timer.Stop() {
				panic("it was not pending")
			}
		}
	})
	close(stop)
	group.Wait()
	return taken
}

// timerCancelRound is a round of the shape timer_cancel.
func timerCancelRound(ops int) figures {
	alone := each(ops, timerCancel(ops, 0))
	beside := each(ops, timerCancel(ops, pendingTimers))
	return figures{alone.ns, fmt.Sprintf(" pending_ns=%.1f", beside.ns)}
}

// meeting has two goroutines begin on two threads at the same time, as ../src/meet.rs says.
type meeting struct {
	asked, answered padded
}

// ask is how the first of the two arrives.
func (m *meeting) ask() {
	for turn := int64(0); ; {
		start := time.Now()
		for range meetingTurns {
			turn++
			m.asked.value.Store(turn)
			for m.answered.value.Load() < turn {
			}
		}
		if time.Since(start) < meetingMoment {
			break
		}
	}
	m.asked.value.Store(-1)
}

// answer is how the second does.
func (m *meeting) answer() {
	for seen := int64(0); seen != -1; {
		if turn := m.asked.value.Load(); turn != seen {
			m.answered.value.Store(turn)
			seen = turn
		}
	}
}

// pair has two goroutines exchange count numbers, the first of which begins with first and the second
// is second. It returns what that took the first.
func pair(count int, first func(), second func(from <-chan int, to chan<- int)) time.Duration {
	there, back := make(chan int, 1), make(chan int, 1)
	taken := make(chan time.Duration, 1)
	over := make(chan struct{})
	go func() {
		first()
		start := time.Now()
		for number := range count {
			there <- number
			if <-back != number {
				panic("another number came back")
			}
		}
		taken <- time.Since(start)
		close(there)
	}()
	go func() {
		second(there, back)
		close(over)
	}()
	<-over
	return <-taken
}

// echo sends back what it receives.
func echo(from <-chan int, to chan<- int) {
	for number := range from {
		to <- number
	}
}

// chanPair has two goroutines exchange count numbers.
func chanPair(count int) time.Duration {
	return pair(count, func() {}, echo)
}

// chanPairApart is the same, begun on two threads.
func chanPairApart(count int) time.Duration {
	met := new(meeting)
	return pair(count, met.ask, func(from <-chan int, to chan<- int) {
		met.answer()
		echo(from, to)
	})
}

// selectPair is as chanPair, but the second goroutine receives by a select over two channels.
func selectPair(count int) time.Duration {
	never := make(chan int, 1)
	return pair(count, func() {}, func(from <-chan int, to chan<- int) {
		for {
			select {
			case number, ok := <-from:
				if !ok {
					return
				}
				to <- number
			case <-never:
				panic("nobody sends")
			}
		}
	})
}

// chanMpsc has some goroutines send the numbers below each through one channel, and receives them.
func chanMpsc(each int) {
	numbers := make(chan int, mpscCapacity)
	var group sync.WaitGroup
	group.Add(producers)
	for range producers {
		go func() {
			defer group.Done()
			for number := range each {
				numbers <- number
			}
		}()
	}
	sum := 0
	for range producers * each {
		sum += <-numbers
	}
	group.Wait()
	if sum != producers*(each*(each-1)/2) {
		panic("a message was lost")
	}
}

// lock has some goroutines lock one mutex, each as often as said, and add to the number inside.
func lock(each int) {
	var mutex sync.Mutex
	var group sync.WaitGroup
	number := 0
	group.Add(lockingGoroutines)
	for range lockingGoroutines {
		go func() {
			defer group.Done()
			for range each {
				mutex.Lock()
				number++
				mutex.Unlock()
			}
		}()
	}
	group.Wait()
	if number != lockingGoroutines*each {
		panic("a lock was held by two")
	}
}

// node is a node of a tree, whose leaves are size numbers from first on.
func node(parent chan<- int, first, size int) {
	if size == 1 {
		parent <- first
		return
	}
	parts := make(chan int, children)
	for index := range children {
		go node(parts, first+index*(size/children), size/children)
	}
	sum := 0
	for range children {
		sum += <-parts
	}
	parent <- sum
}

// skynet adds up the numbers of the leaves of a tree.
func skynet(leaves int) {
	root := make(chan int, 1)
	go node(root, 0, leaves)
	if <-root != leaves*(leaves-1)/2 {
		panic("a leaf was lost")
	}
}

// skynetRound is a round of the shape skynet, with as many leaves as there are in a full tree.
func skynetRound(ops int) figures {
	leaves := 1
	for leaves*children <= ops {
		leaves *= children
	}
	return each(leaves, timed(func() { skynet(leaves) }))
}

// figures is what a round has measured: nanoseconds per operation, and what is printed behind them.
type figures struct {
	ns      float64
	columns string
}

// each returns the figures of operations that took the given time.
func each(made int, taken time.Duration) figures {
	return figures{float64(taken.Nanoseconds()) / float64(made), ""}
}

// timed returns how long a call takes.
func timed(call func()) time.Duration {
	start := time.Now()
	call()
	return time.Since(start)
}

// round is one round of about ops operations of a shape.
type round func(ops int) figures

// shape is a round of a shape, and its number of operations if the command line does not say.
type shape struct {
	defaultOps int
	round      round
}

// shapes are all shapes, by name.
var shapes = map[string]shape{
	"spawn_join": {1_000_000, func(ops int) figures {
		return each(ops, timed(func() { spawnJoin(ops) }))
	}},
	"yield": {1_000_000, func(ops int) figures {
		count := (ops + yieldingGoroutines - 1) / yieldingGoroutines
		return each(yieldingGoroutines*count, timed(func() { yields(yieldingGoroutines, count) }))
	}},
	"chain": {1_000_000, func(ops int) figures {
		return each(ops, timed(func() { chain(ops) }))
	}},
	"wake": {100_000, func(ops int) figures {
		return each(ops, wake(ops, spinShort))
	}},
	"wake_idle": {5_000, func(ops int) figures {
		return each(ops, wake(ops, sleepIdle))
	}},
	"sleepers":     {100_000, sleepersRound},
	"timer_cancel": {1_000_000, timerCancelRound},
	"chan_pair": {1_000_000, func(ops int) figures {
		return each(ops, chanPair(ops))
	}},
	"chan_pair_apart": {1_000_000, func(ops int) figures {
		return each(ops, chanPairApart(ops))
	}},
	"chan_mpsc": {4_000_000, func(ops int) figures {
		count := (ops + producers - 1) / producers
		return each(producers*count, timed(func() { chanMpsc(count) }))
	}},
	"select_pair": {1_000_000, func(ops int) figures {
		return each(ops, selectPair(ops))
	}},
	"mutex": {4_000_000, func(ops int) figures {
		count := (ops + lockingGoroutines - 1) / lockingGoroutines
		return each(lockingGoroutines*count, timed(func() { lock(count) }))
	}},
	"skynet": {1_000_000, skynetRound},
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
		names := slices.Sorted(maps.Keys(shapes))
		fmt.Fprintf(os.Stderr, "usage: shapes %s [OPS]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	runtime.GOMAXPROCS(workers)
	chosen.round(ops)
	measured := chosen.round(ops)
	fmt.Printf("%s %.1f%s\n", os.Args[1], measured.ns, measured.columns)
}
