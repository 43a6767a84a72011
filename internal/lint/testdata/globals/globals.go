// Package globals is the test data of the analyzer of this name.
package globals

import (
	"errors"
	"regexp"
	"sync"
	"sync/atomic"
)

var (
	errSentinel = errors.New("sentinel")
	pattern     = regexp.MustCompile("^a$")
	table       = map[string]int{"one": 1}
	registry    = map[string]func(){}
	counter     int
	options     struct{ verbose bool }
	buffer      [4]byte

	mu     sync.Mutex               // want `mu holds state`
	hits   atomic.Int64             // want `hits holds state`
	pool   = &sync.Pool{}           // want `pool holds state`
	events = make(chan struct{})    // want `events holds state`
	inside struct{ once sync.Once } // want `inside holds state`
)

func register(name string, f func()) {
	registry[name] = f // want `registry is assigned here`
	counter++          // want `counter is assigned here`
}

func change() *int {
	options.verbose = true  // want `options is assigned here`
	delete(registry, "a")   // want `registry is changed here`
	copy(buffer[:], "abcd") // want `buffer is changed here`
	return &counter         // want `counter is taken the address of here`
}

func read(name string) (int, error) {
	counter := 0 // a local variable shadows the package's
	counter++
	if !pattern.MatchString(name) {
		return counter, errSentinel
	}
	return table[name], nil
}
