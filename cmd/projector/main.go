// Projector turns finished steps into durable records and metrics.
package main

import (
	"os"

	"github.com/refold-dev/refold/internal/program"
)

func main() { os.Exit(program.Main(program.Projector())) }
