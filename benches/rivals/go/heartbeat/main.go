// Program heartbeat is the heartbeat beside hogs on Go's goroutines.
//
// It mirrors ../../src/beat.rs: called as `heartbeat HOGS arith SECONDS [RINGS/S]`, it prints one line
// of ` NAME=VALUE`. Three things are not quite the same:
//
//   - No thread can wake a goroutine from outside the scheduler. The ringer is a goroutine locked to
//     its thread, which is under SCHED_FIFO; when it wakes in the kernel it still waits for a P until
//     it may send. So lateness counts from when the ring was due, not from the send. (For the others
//     that would make a difference of the few microseconds that a SCHED_FIFO thread needs to wake.)
//   - The ringer sleeps in the kernel, in a raw system call: time.Sleep would add the delay of
//     Go's timers.
//   - The hogs without a heartbeat are goroutines too, one for each P.
package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	// workers is how many goroutines run at the same time.
	workers = 2
	// multiplications are those of one step of a hog.
	multiplications = 1000
	// schedFIFO is SCHED_FIFO | SCHED_RESET_ON_FORK.
	schedFIFO = 1 | 0x40000000
)

// bell is the list of rings, and of what became of them.
type bell struct {
	start    time.Time
	rung     []int64
	sent     atomic.Int64
	late     []int64
	answered atomic.Int64
	wake     chan struct{}
}

// newBell returns a bell for so many rings.
func newBell(rings int) *bell {
	return &bell{
		start: time.Now(),
		rung:  slices.Repeat([]int64{math.MaxInt64}, rings),
		late:  slices.Repeat([]int64{math.MaxInt64}, rings),
		wake:  make(chan struct{}, 1),
	}
}

// now is the clock of all times here.
func (b *bell) now() int64 {
	return int64(time.Since(b.start))
}

// ring rings once, for the time when it was due.
func (b *bell) ring(due int64) {
	sent := b.sent.Load()
	b.rung[sent] = due
	b.sent.Store(sent + 1)
	select {
	case b.wake <- struct{}{}:
	default: // a wake-up is on its way
	}
}

// beat answers all rings made so far, whenever it is woken.
func (b *bell) beat() {
	for range b.wake {
		now := b.now()
		next := b.answered.Load()
		for sent := b.sent.Load(); next < sent && b.rung[next] <= now; next++ {
			b.late[next] = now - b.rung[next]
		}
		b.answered.Store(next)
	}
}

// claim puts the calling thread under SCHED_FIFO, and says if that is not allowed.
func claim() bool {
	param := int32(50)
	_, _, errno := syscall.RawSyscall(
		syscall.SYS_SCHED_SETSCHEDULER, 0, schedFIFO, uintptr(unsafe.Pointer(&param)))
	if errno != 0 {
		fmt.Fprintln(os.Stderr, "SCHED_FIFO is not allowed: the ringer competes with the hogs")
	}
	return errno == 0
}

// ringFor rings at an even rate, on a thread of its own.
func (b *bell) ringFor(length, period time.Duration) bool {
	runtime.LockOSThread()
	fifo := claim()
	begin := b.now()
	for due := begin + int64(period); due < begin+int64(length); due += int64(period) {
		if wait := due - b.now(); wait > 0 {
			interval := syscall.NsecToTimespec(wait)
			syscall.Nanosleep(&interval, nil)
		}
		b.ring(due)
	}
	return fifo
}

// lateness returns by how much the rings were late, in order; those that nobody answered count with
// the time they have waited.
func (b *bell) lateness() ([]int64, int64) {
	now, answered, sent := b.now(), b.answered.Load(), b.sent.Load()
	late := slices.Clone(b.late[:answered])
	for _, rung := range b.rung[answered:sent] {
		late = append(late, now-rung)
	}
	return late, answered
}

// counter is a number that has its cache line (and the one prefetched with it) for itself.
type counter struct {
	_     [128]byte
	value atomic.Int64
	_     [120]byte
}

// hogs are loops that give nothing away by themselves.
type hogs struct {
	over atomic.Bool
	done []counter
}

// sink keeps the compiler from dropping the hogs' arithmetic.
var sink atomic.Uint64

// startHogs starts so many.
func startHogs(count int) *hogs {
	h := &hogs{done: make([]counter, count)}
	for index := range h.done {
		go h.run(&h.done[index])
	}
	return h
}

// run is the life of one of them.
func (h *hogs) run(done *counter) {
	x := uint64(1)
	for !h.over.Load() {
		for range multiplications {
			x = x*6364136223846793005 + 1442695040888963407
		}
		done.value.Store(done.value.Load() + multiplications)
	}
	sink.Add(x)
}

// iterations is what all have done together.
func (h *hogs) iterations() (sum int64) {
	for index := range h.done {
		sum += h.done[index].value.Load()
	}
	return sum
}

// rate is what they do in a second while call runs.
func (h *hogs) rate(call func()) float64 {
	start, before := time.Now(), h.iterations()
	call()
	return float64(h.iterations()-before) / time.Since(start).Seconds()
}

// plain is what as many hogs as there are workers do in a second with nobody beside them. The caller
// sleeps in the kernel, so that it needs no P meanwhile.
func plain(length time.Duration) float64 {
	h := startHogs(workers)
	defer h.over.Store(true)
	time.Sleep(20 * time.Millisecond)
	interval := syscall.NsecToTimespec(length.Nanoseconds())
	return h.rate(func() { syscall.Nanosleep(&interval, nil) })
}

// parse reads `HOGS arith SECONDS [RINGS/S]`.
func parse(args []string) (count int, length, period time.Duration, ok bool) {
	if len(args) < 3 || len(args) > 4 || args[1] != "arith" {
		return
	}
	count, err := strconv.Atoi(args[0])
	seconds, wrong := strconv.ParseFloat(args[2], 64)
	rings := 2000
	if len(args) == 4 && err == nil {
		rings, err = strconv.Atoi(args[3])
	}
	if err != nil || wrong != nil || count < 0 || seconds <= 0 || rings < 1 {
		return
	}
	return count, time.Duration(seconds * 1e9), time.Second / time.Duration(rings), true
}

func main() {
	count, length, period, ok := parse(os.Args[1:])
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: heartbeat HOGS arith SECONDS [RINGS/S]")
		os.Exit(2)
	}
	runtime.GOMAXPROCS(workers)
	before := plain(length / 2)
	b := newBell(int(length/period) + 1)
	go b.beat()
	time.Sleep(50 * time.Millisecond)
	h := startHogs(count)
	time.Sleep(time.Duration(100+12*count) * time.Millisecond)
	fifo := make(chan bool)
	var allowed bool
	rate := h.rate(func() {
		go func() { fifo <- b.ringFor(length, period) }()
		allowed = <-fifo
	})
	late, served := b.lateness()
	h.over.Store(true)
	both := (before + plain(length/2)) / 2
	slices.Sort(late)
	at := func(share float64) float64 { return float64(late[int(float64(len(late)-1)*share)]) / 1e3 }
	isFIFO := 0
	if allowed {
		isFIFO = 1
	}
	fmt.Printf("heartbeat Go hogs=%d kind=arith rung=%d served=%d p50_us=%.1f p99_us=%.1f p999_us=%.1f"+
		" max_us=%.1f hogs_per_s=%.1f plain_per_s=%.1f share=%.3f fifo=%d\n", count, len(late), served,
		at(0.5), at(0.99), at(0.999), at(1), rate, both, rate/both, isFIFO)
}
