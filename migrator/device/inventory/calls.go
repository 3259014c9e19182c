package inventory

// call is a function of NVML: its index in CN_CALLS of shim.h, which has the symbols.
type call int

const (
	nvmlInit call = iota
	nvmlShutdown
	nvmlDeviceGetCount
	nvmlDeviceGetHandleByIndex
	nvmlDeviceGetUUID
	nvmlDeviceGetName
	nvmlDeviceGetPciInfo
	nvmlDeviceGetMemoryInfo
	requiredCalls // without those above there is no inventory; a driver may lack the others
)

const (
	nvmlSystemGetDriverVersion call = iota + requiredCalls
	nvmlDeviceGetMemoryBusWidth
	nvmlDeviceGetMaxClockInfo
	nvmlDeviceGetNumaNodeID
	nvmlDeviceGetCurrPcieLinkGeneration
	nvmlDeviceGetMaxPcieLinkGeneration
	nvmlDeviceGetCurrPcieLinkWidth
	nvmlDeviceGetMaxPcieLinkWidth
	nvmlDeviceGetMigMode
	nvmlDeviceGetNvLinkState
	nvmlDeviceGetNvLinkVersion
	nvmlDeviceGetNvLinkRemoteDeviceType
	nvmlDeviceGetNvLinkRemotePciInfo
	nvmlDeviceGetTotalEccErrors
	nvmlDeviceGetRemappedRows
	nvmlDeviceGetCurrentClocksEventReasons
	nvmlDeviceGetTopologyCommonAncestor
	nvmlDeviceGetP2PStatus
	nvmlEventSetCreate
	nvmlDeviceRegisterEvents
	nvmlEventSetWait
	nvmlEventSetFree
	callCount
)

// Values of nvml.h.
const (
	codeSuccess = 0
	codeTimeout = 10

	textBytes               = 96 // of the longest text, a UUID or a name
	clockMemory             = 2
	maxNVLinks              = 36
	remoteSwitch            = 2
	errorUncorrected        = 1
	counterVolatile         = 0
	p2pRead                 = 0
	p2pWrite                = 1
	p2pNVLink               = 2
	p2pOK                   = 0
	eventXid         uint64 = 8
)

// words are the arguments and results of a call. shim.h defines their meaning.
type words [8]uint64

// pciInfo is nvmlPciInfo_t.
type pciInfo struct {
	_                         [16]byte
	domain, bus, device, _, _ uint32
	_                         [32]byte
}
