// Loop-worker runs the loops of sessions.
package main

import (
	"os"

	"github.com/refold-dev/refold/internal/program"
)

func main() { os.Exit(program.Main(program.Worker())) }
