// Package embedded runs NATS servers with JetStream inside this process: one for programs that need nothing else to be
// installed, and clusters of several for tests.
package embedded
