package cuda

// call is a function of the driver: its index in CS_CALLS of shim.h, which has the symbols.
type call int

const (
	cuInit call = iota
	cuDriverGetVersion
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUUID
	cuDeviceGetPCIBusID
	cuDeviceTotalMem
	cuDeviceGetAttribute
	cuDeviceCanAccessPeer
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuCtxGetStreamPriorityRange
	cuMemAlloc
	cuMemFree
	cuMemGetAddressRange
	cuMemHostAlloc
	cuMemFreeHost
	cuMemHostGetDevicePointer
	cuMemHostRegister
	cuMemHostUnregister
	cuIpcGetMemHandle
	cuIpcOpenMemHandle
	cuIpcCloseMemHandle
	cuMemGetAllocationGranularity
	cuMemCreate
	cuMemRelease
	cuMemExportToShareableHandle
	cuMemImportFromShareableHandle
	cuMemAddressReserve
	cuMemAddressFree
	cuMemMap
	cuMemUnmap
	cuMemSetAccess
	cuMemGetHandleForAddressRange
	cuStreamCreateWithPriority
	cuStreamDestroy
	cuStreamSynchronize
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventElapsedTime
	cuMemcpyDtoDAsync
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemsetD8Async
	cuMemcpyBatchAsyncV2
	cuMemcpyBatchAsync
	cuModuleLoadData
	cuModuleUnload
	cuModuleGetFunction
	cuLaunchKernel
	cuGetErrorName
	callCount
)

// optional are the functions that older drivers lack.
var optional = map[call]bool{cuMemcpyBatchAsyncV2: true, cuMemcpyBatchAsync: true, cuMemGetHandleForAddressRange: true}
