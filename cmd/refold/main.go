// Refold is the command line: sessions, requests, audits, and everything in one process for development.
package main

import (
	"os"

	"github.com/refold-dev/refold/internal/program"
)

func main() { os.Exit(program.Main(newRoot())) }
