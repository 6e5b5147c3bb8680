// Program echo is the echo server on Go's goroutines.
//
// It mirrors ../../src/echo.rs: called as `echo [--hogs N]`, it prints `port=PORT`, and for each line on stdin
// and at its end how much the hogs have done. There is no place of their own for hogs here, so
// --hogs-blocking changes nothing.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// workers is how many goroutines run at the same time.
	workers = 2
	// buffer is what a connection's buffer holds.
	buffer = 1024
	// multiplications are those of one step of a hog.
	multiplications = 1000
)

// done is what one hog has done, on cache lines of its own.
type done struct {
	count atomic.Int64
	_     [120]byte
}

// hog multiplies for ever.
func hog(d *done, x uint64) {
	for {
		for range multiplications {
			x = x*6364136223846793005 + 1442695040888963407
		}
		if x == 0 { // which keeps the compiler from leaving it out
			fmt.Fprintln(os.Stderr, "zero")
		}
		d.count.Store(d.count.Load() + multiplications)
	}
}

// echo sends back whatever comes.
func echo(connection net.Conn) {
	defer connection.Close()
	bytes := make([]byte, buffer)
	for {
		got, err := connection.Read(bytes)
		if err != nil {
			return
		}
		if _, err := connection.Write(bytes[:got]); err != nil {
			return
		}
	}
}

// accept gives each connection a goroutine.
func accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(time.Millisecond)
			continue
		}
		go echo(connection)
	}
}

func main() {
	hogs := flag.Int("hogs", 0, "endless loops beside the connections")
	flag.Bool("hogs-blocking", false, "changes nothing")
	flag.String("driver", "", "changes nothing")
	flag.Parse()
	runtime.GOMAXPROCS(workers)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	start := time.Now()
	all := make([]done, *hogs)
	go accept(listener)
	for i := range all {
		go hog(&all[i], uint64(i)+1)
	}
	fmt.Printf("port=%d\n", listener.Addr().(*net.TCPAddr).Port)
	say := func() {
		sum := int64(0)
		for i := range all {
			sum += all[i].count.Load()
		}
		fmt.Printf("iterations=%d clock_ns=%d\n", sum, time.Since(start).Nanoseconds())
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		say()
	}
	say()
}
