package events_test

import (
	"sync"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
)

// TestEncodeShared encodes one input in many goroutines, which the race detector watches: what is encoded is only read.
func TestEncodeShared(t *testing.T) {
	in := events.Input{
		ID: "01JGFJJZ7RA1B2C3D4E5F6G7H9", Time: 1, Kind: events.InputPrompt, Content: []events.Block{events.Text("one"), events.Text("two")},
		Options: events.Options{Model: "m", MaxTokens: 5, Stop: []string{"x"}}, Labels: []events.Label{{Name: "a", Value: "b"}},
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := events.EncodeInput(&in); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}
