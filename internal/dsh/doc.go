// Package dsh reads session logs of the reference system (DeepSeek Harness) and turns them into logs of ours, whose
// fold and codec then rebuild the exact bodies of the requests that the reference system sent.
package dsh
