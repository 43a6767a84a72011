// Package verify is the service that checks all sessions: [Verifier] follows their logs, checks them with package audit
// and keeps signed verdicts in a stream of records.
package verify
