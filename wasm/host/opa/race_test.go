//go:build race

package opa_test

const race = true
