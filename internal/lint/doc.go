// Package lint holds the rules of this repository that ordinary linters do not
// see. They run as tests of this package:
//
//   - the import directions, an explicit table of who may import what;
//   - [MapRange], [Clock] and [Globals], analyzers that are run over the
//     packages of this module by "go vet" with the test binary as its tool;
//   - the shape of the sources: sizes of files and functions, no init
//     functions, no sleeping tests, no names of somebody's machine.
package lint

import "golang.org/x/tools/go/analysis"

// Pure returns the packages, relative to the module root, that give one result
// for one input: no clock, no I/O, no order of a map.
func Pure() []string {
	return []string{"pkg/events", "pkg/fold", "pkg/codec"}
}

// Ordered returns the packages, relative to the module root, in which the order
// of a map must not reach a result: the pure ones and those that do I/O for
// bytes that others compare.
func Ordered() []string {
	return append(Pure(), "pkg/objects")
}

// Analyzers returns the analyzers of this package, in the order of their names.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{Clock(), Globals(), MapRange()}
}
