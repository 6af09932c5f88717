// Package config reads kvsteer's configuration: one strict YAML file.
//
// Load and Parse report every problem of a file at once, each with its line, the key's full path, the value found and what is
// allowed. A key that the schema does not know is a problem too, with the closest known key as a suggestion, so that a
// misspelt key can never be ignored in silence. What the file leaves out takes the default that stands in the field's tag;
// Reference renders the same tags as the table of docs/configuration.md.
//
// The schema is the struct Config itself. Three tags describe a field: yaml (its key), default (as it would be written in the
// file) and doc (one sentence for the reference; "range: …" in it is for people, Parse checks it in validate.go).
//
//	cfg, err := config.Load("kvsteer.yaml")
//	// kvsteer.yaml:7: pools[0].endpoint: unknown key, did you mean "endpoints"?
//	// kvsteer.yaml:12: budget: "2s" is not below envoy.message_timeout (1s)
package config
