// Package maprange is the test data of the analyzer of this name.
package maprange

import (
	"maps"
	"reflect"
	"slices"
)

type set map[string]bool

func direct(m map[string]int) (out []string) {
	for k := range m { // want `a range over a map has no order`
		out = append(out, k)
	}
	return out
}

func named(s set) int {
	n := 0
	for range s { // want `a range over a map`
		n++
	}
	return n
}

func generic[M ~map[K]V, K comparable, V any](m M) (out []V) {
	for _, v := range m { // want `a range over a map`
		out = append(out, v)
	}
	return out
}

func sequences(m map[string]int) (out []string) {
	for k := range maps.Keys(m) { // want `the sequence of maps.Keys`
		out = append(out, k)
	}
	for v := range maps.Values[map[string]int](m) { // want `the sequence of maps.Values`
		out = append(out, string(rune(v)))
	}
	for k := range maps.All(m) { // want `the sequence of maps.All`
		out = append(out, k)
	}
	return append(out, slices.Collect(maps.Keys(m))...) // want `the sequence of maps.Keys`
}

func reflected(v reflect.Value) []reflect.Value {
	return v.MapKeys() // want `the sequence of \(reflect.Value\).MapKeys`
}

func ordered(m map[string]int) (out []string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k)
	}
	clone := maps.Collect(maps.All(m))
	delete(clone, "")
	for i := range out {
		out[i] += "!"
	}
	return out
}

func permitted(m map[string]int) (sum int) {
	for _, n := range m { //refold:unordered addition commutes
		sum += n
	}
	//refold:unordered addition commutes
	for _, n := range m {
		sum += n
	}
	return sum
}

func badDirectives(m map[string]int) (sum int) {
	/* want `needs a reason` */ //refold:unordered
	for _, n := range m {       // want `a range over a map`
		sum += n
	}
	/* want `permits nothing here` */ //refold:unordered nothing is iterated here
	return sum
}
